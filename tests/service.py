"""The real service as processes of its own, for the tests of every room that talks to it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx

ROOT = Path(__file__).parents[1]


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def wait_until(condition, timeout_s=60.0, every_s=0.02):
    """The first true value of ``condition()``; fails after ``timeout_s``."""
    until = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < until, f"not within {timeout_s} s"
        time.sleep(every_s)


def clean_environment(directory: Path) -> dict[str, str]:
    """The environment without settings of the person who runs the tests; caches and sockets below ``directory``."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("DRAFTPORT_") and name not in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
    }
    return kept | {
        "DRAFTPORT_CACHE_DIR": str(directory / "cache"),
        "DRAFTPORT_RUNTIME_DIR": str(directory / "run"),
        "PYTHONPATH": str(ROOT),
    }


class Service:
    """``draftport serve`` with settings as keyword arguments: ``Service(directory, WORKER="off")``."""

    def __init__(
        self,
        directory: Path,
        *,
        wait: bool = True,
        port: int | None = None,
        code: Path | None = None,
        **settings: object,
    ) -> None:
        self.directory = directory
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.environment = clean_environment(directory) | {
            f"DRAFTPORT_{name}": str(value) for name, value in settings.items()
        }
        self.environment["PYTHONPATH"] = str(code or ROOT)
        self.socket_path = Path(self.environment["DRAFTPORT_RUNTIME_DIR"]) / "worker.sock"
        self.log_path = directory / f"service-{self.port}.log"
        self.started_at = time.monotonic()
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(),
                env=self.environment,
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.http = httpx.Client(base_url=self.url, timeout=60)
        if wait:
            self.wait_live()

    def command(self) -> list[str]:
        """What is started."""
        return [sys.executable, "-m", "app.cli", "serve", "--port", str(self.port)]

    def answers(self, path: str) -> bool:
        """Whether ``path`` is answered with 200 now."""
        assert self.process.poll() is None, self.log()
        try:
            return self.http.get(path).status_code == 200
        except httpx.TransportError:
            return False

    def wait_live(self) -> Service:
        wait_until(lambda: self.answers("/livez"), 60)
        return self

    def wait_worker(self, timeout_s: float = 120) -> Service:
        wait_until(lambda: self.answers("/readyz/worker"), timeout_s, 0.05)
        return self

    def worker_state(self) -> str:
        return self.http.get("/readyz").json()["worker"]["state"]

    def worker_pid(self) -> int:
        """The pid of the embedded worker, a child of the API process."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        for pid in map(int, children):
            if b"app.worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
        raise AssertionError("no worker runs")

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def log_lines(self) -> list[dict]:
        return [json.loads(line) for line in self.log().splitlines() if line.startswith("{")]

    def stop(self, timeout_s: float = 30) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)

    def close(self) -> None:
        self.http.close()
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
