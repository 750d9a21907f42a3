import subprocess
import sys
import time
from pathlib import Path

import pytest

from app.reader import ConnectionLostError, Region, StaleLeaseError

ROOT = Path(__file__).parents[2]


def check_until(lease, deadline):
    while time.monotonic() < deadline:
        lease.check()


def test_a_killed_worker_makes_every_lease_stale_within_a_second(worker):
    region = Region.attach(worker.path)
    [lease] = region.forward([[1, 2]])
    rows = lease.tensor()
    worker.kill()
    killed_at = time.monotonic()
    with pytest.raises(StaleLeaseError):
        check_until(lease, killed_at + 1)
    with pytest.raises(StaleLeaseError):
        lease.tensor()
    with pytest.raises(ConnectionLostError):
        region.forward([[1]])
    assert rows[1, 0] == 2  # still memory, no longer a promise
    lease.release()
    region.close()


def test_a_killed_worker_ends_a_waiting_call(worker):
    region = Region.attach(worker.path)
    killer = subprocess.Popen(["/bin/sh", "-c", f"sleep 0.2; kill -9 {worker.process.pid}"])
    with pytest.raises(ConnectionLostError):
        region.forward(prompts=["never"], timeout_s=30)
    assert killer.wait() == 0
    region.close()


HOLD = """
import sys, time
from app.reader import Region
region = Region.attach(sys.argv[1])
leases = [region.forward([[1, 2, 3]], lease_ttl_s=600)[0] for _ in range(3)]
tensors = [lease.numpy() for lease in leases]
print("holding", flush=True)
time.sleep(600)
"""


def test_killed_readers_leave_nothing_behind(worker, region, active):
    for _ in range(3):
        reader = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(worker.path)], stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        with reader:
            assert reader.stdout.readline() == "holding\n"
            assert active(region) == 3
            reader.kill()
            killed_at = time.monotonic()
            while active(region) and time.monotonic() < killed_at + 10:
                pass
        assert active(region) == 0
    assert not list(Path("/dev/shm").glob("draftport*"))


def test_garbage_from_the_worker_ends_the_region_and_nothing_else(region):
    [lease] = region.forward([[1]])
    with pytest.raises(ConnectionLostError, match="no valid message"):
        region.forward(prompts=["garbage"])
    with pytest.raises(StaleLeaseError):
        lease.check()
    with pytest.raises(ConnectionLostError):
        region.forward([[1]])
