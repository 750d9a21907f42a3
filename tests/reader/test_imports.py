import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

SCRIPT = """
import sys
before = set(sys.modules)
import app.reader
from app.reader import Region, Lease
allowed = set(sys.stdlib_module_names) | {"msgspec", "typing_extensions", "app"}  # msgspec takes the latter where it is
names = {name.partition(".")[0] for name in set(sys.modules) - before}
print(sorted(name for name in names - allowed if not name.startswith("_")))
print(sorted(name for name in sys.modules if name.startswith("app.")))
"""


def test_importing_the_reader_takes_msgspec_and_the_standard_library_only():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, cwd=ROOT
    )
    foreign, ours = done.stdout.splitlines()
    assert foreign == "[]"
    rooms = {name.split(".")[1] for name in eval(ours)}
    assert rooms == {"reader", "transport"}


def test_a_transport_descriptor_needs_no_numpy_either(worker):
    script = f"""
import sys
from app.reader import Region
with Region.attach({str(worker.path)!r}) as region, region.forward([[1, 2]])[0] as lease:
    lease.check()
    lease.renew(5)
assert not {{"torch", "numpy", "asyncio"}} & set(sys.modules), "heavy import"
"""
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)
