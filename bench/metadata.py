"""Requests per second of cached metadata GETs on 16 connections, as a ratio to the bare framework, interleaved."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

CONNECTIONS, SECONDS, ROUNDS = 16, 2.0, 5
PATH = "/v1/load-config?load_format=fastsafetensors&pipeline_parallel_size=2"


@contextlib.contextmanager
def running(command: list[str], port: int, environment: dict[str, str]) -> Iterator[None]:
    """A server as a process of its own, until it listens."""
    process = subprocess.Popen(command, env=os.environ | environment, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 30
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            if time.monotonic() > until:
                raise TimeoutError(f"{command} does not listen")
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait(30)


async def one_connection(port: int, path: str, until: float, times: list[float]) -> int:
    """Asks again and again on one connection; the size of the answers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    request = f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
    length = 0
    while time.perf_counter() < until:
        started = time.perf_counter()
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(head.decode())
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
        times.append(time.perf_counter() - started)
    writer.close()
    return length


async def measure(port: int, path: str) -> tuple[float, float, int]:
    """Requests per second, the 99th percentile in milliseconds, and the size of an answer."""
    times: list[float] = []
    until = time.perf_counter() + SECONDS
    sizes = await asyncio.gather(*(one_connection(port, path, until, times) for _ in range(CONNECTIONS)))
    return len(times) / SECONDS, statistics.quantiles(times, n=100)[98] * 1e3, sizes[0]


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def main() -> None:
    """Prints medians, and the range of the ratio over the rounds."""
    ours, bare = free_port(), free_port()
    serve = [
        sys.executable,
        "-m",
        "app.cli",
        "serve",
        "--worker",
        "off",
        "--log-level",
        "WARNING",
        "--port",
        str(ours),
    ]
    uvicorn = [sys.executable, "-m", "uvicorn", "bench.bare:app", "--log-level", "warning", "--no-access-log"]
    with (
        tempfile.TemporaryDirectory() as directory,
        running(serve, ours, {"DRAFTPORT_RUNTIME_DIR": directory}),
    ):
        _, _, size = asyncio.run(measure(ours, PATH))  # warm-up, and how large an answer is
        with running([*uvicorn, "--port", str(bare)], bare, {"BENCH_BODY_BYTES": str(size)}):
            asyncio.run(measure(bare, "/constant"))
            rounds = [
                (asyncio.run(measure(ours, PATH)), asyncio.run(measure(bare, "/constant")))
                for _ in range(ROUNDS)
            ]
    ratios = [one[0] / other[0] for one, other in rounds]
    print("| what | requests/s | p99 ms |\n|---|---|---|")
    for name, index in (("GET /v1/load-config", 0), ("bare FastAPI, a constant of the same size", 1)):
        rate, p99 = (statistics.median(one[index][field] for one in rounds) for field in (0, 1))
        print(f"| {name} | {rate:.0f} | {p99:.2f} |")
    print(f"\nratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
