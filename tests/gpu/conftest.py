"""One set of bodies for both transports: the worker on a CPU (memfd) and, where there is one, on a GPU (CUDA IPC)."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from service import ROOT, clean_environment, wait_until

from app.reader import Region
from app.transport.cuda_ipc import probe_support

HERE = Path(__file__).parent


class WorkerProcess:
    """``python -m app.worker`` holding the demo target."""

    def __init__(self, directory, cache_dir, device, **config):
        self.environment = clean_environment(directory)
        self.socket_path = directory / "run" / "worker.sock"
        settings = {
            "socket_path": str(self.socket_path),
            "cache_dir": str(cache_dir),
            "device": device,
            "slots": 4,
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "app.worker", "--config", json.dumps(settings | config)],
            cwd=ROOT, env=self.environment, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        with Region.attach(self.socket_path, timeout_s=120):
            pass

    def kill(self):
        self.process.kill()
        self.process.wait()


class ReaderProcess:
    """``reader.py``: obeys one JSON line after another."""

    def __init__(self, worker):
        self.process = subprocess.Popen(
            [sys.executable, HERE / "reader.py", worker.socket_path], cwd=ROOT, env=worker.environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ask(self, op, **arguments):
        self.process.stdin.write(json.dumps({"op": op, **arguments}) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline() or '{"error": "the reader is gone"}')
        assert "error" not in answer, answer["error"]
        return answer

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    """Where the target runs."""
    reason = probe_support() if request.param == "cuda" else None
    if reason is not None:
        pytest.skip(reason)
    return request.param


@pytest.fixture
def start_worker(device, tmp_path, cache_dir):
    """``start_worker(**config) -> WorkerProcess`` on ``device``."""
    started = []

    def start(**config):
        directory = tmp_path / f"worker-{len(started)}"
        directory.mkdir()
        started.append(WorkerProcess(directory, cache_dir, device, **config))
        return started[-1]

    yield start
    for worker in started:
        worker.kill()


@pytest.fixture
def start_reader():
    """``start_reader(worker) -> ReaderProcess``."""
    started = []

    def start(worker):
        started.append(ReaderProcess(worker))
        return started[-1]

    yield start
    for reader in started:
        reader.kill()


@pytest.fixture
def until():
    return wait_until
