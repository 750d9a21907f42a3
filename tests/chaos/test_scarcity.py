"""Too few descriptors, no room in the cache: refused in words, and fine again when there is room."""

import contextlib
import resource
import socket
import subprocess
import sys
import time

import pytest
from service import Service, clean_environment, wait_until

from app.reader import Region

LIMITED = """
import resource, runpy, sys
name, value = sys.argv[1], int(sys.argv[2])
resource.setrlimit(getattr(resource, name), (value, value))
sys.argv = ["draftport", *sys.argv[3:]]
runpy.run_module("app.cli", run_name="__main__")
"""


class LimitedService(Service):
    """The service under a resource limit, which its worker inherits."""

    limit = ("RLIMIT_NOFILE", 96)

    def command(self):
        return [sys.executable, "-c", LIMITED, *map(str, self.limit), "serve", "--port", str(self.port)]


@pytest.fixture
def limited(tmp_path, cache_dir):
    running = LimitedService(tmp_path, CACHE_DIR=cache_dir, LOG_FORMAT="json").wait_worker()
    yield running
    running.close()


def test_descriptors_run_out_and_come_back(limited):
    with contextlib.ExitStack() as stack:
        for family, address in (
            (socket.AF_INET, ("127.0.0.1", limited.port)),
            (socket.AF_UNIX, str(limited.socket_path)),
        ):
            for _ in range(200):
                sock = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
                sock.settimeout(0.05)
                with contextlib.suppress(OSError):
                    sock.connect(address)
        time.sleep(0.5)
        assert limited.process.poll() is None
    wait_until(lambda: limited.answers("/livez"), 20)
    wait_until(lambda: limited.answers("/readyz/worker"), 60)
    with Region.attach(limited.socket_path) as region:
        assert region.forward([[1, 2, 3]])
    answer = limited.http.post("/v1/hidden-states", json={"prompt_token_ids": [[1]], "lease_ttl_s": 1})
    assert answer.status_code == 200
    assert limited.stop() == 0


def test_a_full_disk_under_the_cache_is_told(tmp_path):
    """Files may not grow beyond a kilobyte: the demo target does not fit."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if hard != resource.RLIM_INFINITY and hard < 4096:
        pytest.skip(f"files may have {hard} bytes here")
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, "RLIMIT_FSIZE", "1024", "worker"],
        capture_output=True, text=True, check=False, timeout=60, env=clean_environment(tmp_path),
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert "cache" in done.stderr
    assert not list((tmp_path / "cache").rglob("*.safetensors"))
