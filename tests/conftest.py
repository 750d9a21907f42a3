"""Fixtures that several rooms use: the stub worker as a process of its own."""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

_TESTS = Path(__file__).parent


@pytest.fixture(scope="session")
def stub():
    """The module of the stub worker: ``rows_of`` says what its rows hold, ``Stub`` runs in this process."""
    spec = importlib.util.spec_from_file_location("draftport_stub_worker", _TESTS / "stub_worker.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class WorkerProcess:
    def __init__(self, path: Path, options: dict) -> None:
        self.path = path
        self.options = options
        environment = os.environ | {"PYTHONPATH": str(_TESTS.parent)}
        self.process = subprocess.Popen(
            [sys.executable, str(_TESTS / "stub_worker.py"), str(path), json.dumps(options)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert self.process.stdout.readline() == "ready\n"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.kill()
        self.process.stdout.close()


@pytest.fixture
def start_stub(tmp_path):
    """``start_stub(**options) -> WorkerProcess``; all are killed at the end."""
    started = []

    def start(**options):
        worker = WorkerProcess(tmp_path / f"worker-{len(started)}.sock", options)
        started.append(worker)
        return worker

    yield start
    for worker in started:
        worker.close()


def count_descriptors() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def descriptors():
    """Counts this process's open descriptors."""
    return count_descriptors
