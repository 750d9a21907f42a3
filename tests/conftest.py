"""Fixtures that several rooms use: the stub worker and the real service as processes of their own."""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_server import HubServer
from service import Service

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


@pytest.fixture(scope="session")
def service(tmp_path_factory):
    """The service with its demo target, ready; shared: tests leave no lease behind and kill nothing."""
    running = Service(tmp_path_factory.mktemp("service"), EXPOSE_REGION="true", LOG_FORMAT="json")
    yield running.wait_worker()
    running.close()


@pytest.fixture(scope="session")
def cache_dir(service):
    """The cache that has the demo target already."""
    return service.environment["DRAFTPORT_CACHE_DIR"]


@pytest.fixture
def start_service(tmp_path, cache_dir):
    """``start_service(WORKER="off", ...) -> Service``: one of the test's own; ended with the test."""
    started = []

    def start(**settings):
        directory = tmp_path / f"service-{len(started)}"
        directory.mkdir()
        running = Service(directory, **{"CACHE_DIR": cache_dir, "LOG_FORMAT": "json"} | settings)
        started.append(running)
        return running

    yield start
    for running in started:
        running.close()


@pytest.fixture
def hub() -> Iterator[HubServer]:
    server = HubServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.release.set()
    server.shutdown()
    server.server_close()
    thread.join()
