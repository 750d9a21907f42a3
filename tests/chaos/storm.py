"""The storm: one service, readers in processes of their own, REST clients, and a seeded stream of misfortunes."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path

import hostile
from content import Content
from rest_client import RestClient
from service import Service, wait_until

from app.reader import Region, TransportError
from app.reader.deadline import Deadline
from app.transport import messages as wire

HERE = Path(__file__).parent
READERS, REST_CLIENTS = 4, 3
READY_TIMEOUT_S = 90


class Storm:
    """Everything that runs, and what was seen of it."""

    def __init__(
        self, directory: Path, content: Path, seed: int, *, code: Path | None = None, **settings: object
    ) -> None:
        self.directory = directory
        self.content_path = content
        self.random = random.Random(seed)
        self.settings = {"LOG_FORMAT": "json", "SLOTS": 3, "MAX_NUM_BATCHED_TOKENS": 1024} | settings
        self.code = code
        self.service = Service(directory, code=code, **self.settings).wait_worker()
        self.api_kills = 0
        self.stopping = threading.Event()
        self.events: Counter[str] = Counter()
        self.ready_after_s: dict[str, list[float]] = defaultdict(list)
        self.readers: list[subprocess.Popen] = []
        known = Content(content)
        self.rest = [
            RestClient(self.service.url, known, seed * 1000 + i, self.stopping, lambda: self.api_kills)
            for i in range(REST_CLIENTS)
        ]

    def run(self, seconds: float, kinds: dict[str, float]) -> None:
        """Lets misfortunes of these kinds (and weights) happen for so long."""
        for _ in range(READERS):
            self.start_reader()
        for client in self.rest:
            client.start()
        once = self.random.sample(list(kinds), len(kinds))  # each kind happens, however short the storm
        until = time.monotonic() + seconds
        try:
            while once or time.monotonic() < until:
                drawn = self.random.choices(list(kinds), list(kinds.values()))[0]
                kind = once.pop() if once and self.random.random() < 0.1 else drawn
                getattr(self, kind)()
                self.events[kind] += 1
                time.sleep(self.random.expovariate(20))
        finally:
            self.stop_clients()

    def start_reader(self) -> None:
        log = self.directory / f"reader-{len(list(self.directory.glob('reader-*')))}.jsonl"
        log.touch()
        command = [sys.executable, HERE / "reader.py", self.service.socket_path, self.content_path, log]
        seed = self.random.randrange(2**32)
        self.readers.append(subprocess.Popen([*map(str, command), str(seed)], env=self.service.environment))

    def stop_clients(self) -> None:
        self.stopping.set()
        for reader in self.readers:
            reader.send_signal(signal.SIGCONT)
            reader.terminate()
        for reader in self.readers:
            reader.wait(60)
        for client in self.rest:
            client.join(90)
            assert not client.is_alive(), "a REST client hangs"

    # Misfortunes

    def kill_reader(self) -> None:
        reader = self.readers.pop(self.random.randrange(len(self.readers)))
        reader.kill()
        reader.wait()
        self.start_reader()

    def pause_reader(self) -> None:
        self._pause(self.random.choice(self.readers).pid)

    def kill_worker(self) -> None:
        with contextlib.suppress(AssertionError, ProcessLookupError, FileNotFoundError):
            epoch = self._epoch()
            os.kill(self.service.worker_pid(), signal.SIGKILL)
            began = time.monotonic()
            wait_until(lambda: self._epoch() not in (epoch, None), READY_TIMEOUT_S, 0.02)
            self.ready_after_s["kill_worker"].append(time.monotonic() - began)

    def kill_worker_while_it_loads(self) -> None:
        for _ in range(2):
            with contextlib.suppress(AssertionError, ProcessLookupError, FileNotFoundError):
                os.kill(self.service.worker_pid(), signal.SIGKILL)
            time.sleep(self.random.uniform(0.5, 2.5))
        began = time.monotonic()
        self.service.wait_worker(READY_TIMEOUT_S)
        self.ready_after_s["kill_worker_while_it_loads"].append(time.monotonic() - began)

    def pause_worker(self) -> None:
        with contextlib.suppress(AssertionError, ProcessLookupError, FileNotFoundError):
            self._pause(self.service.worker_pid())

    def kill_api(self) -> None:
        self.api_kills += 1
        old = self.service
        old.process.kill()
        old.process.wait()
        began = time.monotonic()
        old.http.close()
        self.service = Service(self.directory, code=self.code, port=old.port, **self.settings).wait_worker(
            READY_TIMEOUT_S
        )
        self.ready_after_s["kill_api"].append(time.monotonic() - began)
        self.api_kills += 1

    def hostile_client(self) -> None:
        act = self.random.choice(hostile.ALL)
        with contextlib.suppress(OSError):
            act(self.service.socket_path, self.random)

    def hostile_request(self) -> None:
        body = self.random.choice([b"{", b"[" * 50_000, b"null", b'{"prompt_token_ids": [[1e99]]}', b"\xff"])
        path = self.random.choice(
            ["/v1/hidden-states", "/v1/mask-token", "/v1/load-config", "/%2e%2e/etc/passwd"]
        )
        answer = self.service.http.post(path, content=body, headers={"content-type": "application/json"})
        if not 400 <= answer.status_code < 500:
            self.rest[0].faults.append(f"{path} answered {body[:20]!r} with {answer.status_code}")

    def _pause(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(self.random.uniform(0.1, 1.5))
            os.kill(pid, signal.SIGCONT)

    def _epoch(self) -> str | None:
        try:
            with Region.attach(self.service.socket_path, timeout_s=2) as region:
                return region.descriptor.epoch
        except (TransportError, TimeoutError, OSError):
            return None

    # What is left

    def left_behind(self) -> list[str]:
        """What must not be: leases, slots, work, descriptors, memory that are still taken after everybody left."""
        self.service.wait_worker()
        self._settled(lambda stats: stats.leases_active == 0 and stats.connections == 2)
        stats = self.stats()  # of the API process's connection, and of the one that asks
        found = [
            f"{name}={value}"
            for name, value, most in (
                ("leases_active", stats.leases_active, 0),
                ("slots_leased", stats.slots_leased, 0),
                ("queue_depth", stats.queue_depth, 0),
                ("connections", stats.connections, 2),
                ("worker descriptors", _descriptors(self.service.worker_pid()), 60),
                ("API descriptors", _descriptors(self.service.process.pid), 60),
                ("API MiB", _resident_mib(self.service.process.pid), 120),
            )
            if value > most
        ]
        status = self.service.stop()
        names = [path.name for path in Path("/dev/shm").iterdir() if "draftport" in path.name]
        found += [f"exit status {status}"] if status else []
        found += [f"/dev/shm/{name}" for name in names]
        return found + (["the socket's file"] if self.service.socket_path.exists() else [])

    def _settled(self, condition) -> None:
        with contextlib.suppress(AssertionError):
            wait_until(lambda: condition(self.stats()), 5)

    def report(self) -> dict:
        """Faults and counts, from every log."""
        counts: Counter[str] = Counter()
        faults: list[str] = []
        for log in sorted(self.directory.glob("reader-*.jsonl")):
            for text in log.read_text().splitlines():
                line = json.loads(text)
                counts.update(line.get("counts", {}))
                if "fault" in line:
                    faults.append(f"{line['fault']}: {line['detail']}")
        for client in self.rest:
            counts.update(client.counts)
            faults += client.faults
        return {
            "events": dict(self.events),
            "counts": dict(counts),
            "faults": faults,
            "ready_after_s": {
                kind: (sorted(t)[len(t) // 2], max(t)) for kind, t in self.ready_after_s.items()
            },
        }

    def stats(self) -> wire.StatsReply:
        with Region.attach(self.service.socket_path) as region:
            return region.connection.call(wire.Stats(id=0), wire.StatsReply, Deadline(10))

    def close(self) -> None:
        self.stopping.set()
        for reader in self.readers:
            reader.kill()
            reader.wait()
        self.service.close()


def _descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def _resident_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) / 1024
