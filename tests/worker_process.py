"""Worker processes for tests (``python -m app.worker``), and a client that may send them anything."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Self

from service import clean_environment, wait_until

from app.reader import Region
from app.reader.deadline import Deadline
from app.transport import messages as wire
from app.transport.descriptors import ANCILLARY_BYTES, descriptors_in
from app.transport.frames import FrameDecoder, frame
from app.transport.worker_config import WorkerConfig


class RawClient:
    """A blocking socket to a worker that checks nothing of what it sends."""

    def __init__(self, path: Path, *, hello: bool = True, timeout_s: float = 30) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(str(path))  # blocking: with a timeout a full backlog would be an error
        self.sock.settimeout(timeout_s)
        self.descriptors: list[int] = []
        self._decoder = FrameDecoder()
        self._payloads: list[bytes] = []
        if hello:
            reply = self.call(wire.Hello(id=0, protocol_version=wire.PROTOCOL_VERSION))
            assert isinstance(reply, wire.HelloReply), reply

    def send(self, *requests: wire.Request) -> None:
        self.sock.sendall(b"".join(frame(wire.encode(request)) for request in requests))

    def send_payload(self, payload: bytes) -> None:
        self.sock.sendall(frame(payload))

    def receive(self) -> wire.Reply | None:
        """The next reply or event, ``None`` at the end of the connection."""
        while not self._payloads:
            try:
                chunk, ancillary, _flags, _peer = self.sock.recvmsg(256 << 10, ANCILLARY_BYTES)
            except ConnectionResetError:
                return None
            if not chunk:
                return None
            self.descriptors += descriptors_in(ancillary)
            self._payloads += self._decoder.feed(chunk)
        return wire.decode_reply(self._payloads.pop(0))

    def call(self, request: wire.Request) -> wire.Reply | None:
        """Sends and waits for the reply; other replies and events on the way are dropped."""
        self.send(request)
        return self.reply_to(request.id)

    def reply_to(self, request_id: int) -> wire.Reply | None:
        while (reply := self.receive()) is not None:
            if reply.id == request_id and not isinstance(reply, wire.StepEvent | wire.StateEvent):
                return reply
        return None

    def close(self) -> None:
        for fd in self.descriptors:
            os.close(fd)
        self.descriptors.clear()
        self.sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


class Worker:
    """``python -m app.worker`` with the settings given, and everything it wrote to stderr."""

    def __init__(
        self, directory: Path, *arguments: str, pass_fds: tuple[int, ...] = (), **settings: object
    ) -> None:
        directory.mkdir(exist_ok=True)
        self.path = Path(settings.setdefault("socket_path", str(directory / "run" / "worker.sock")))
        settings.setdefault("log_format", "text")
        self.log_path = directory / "worker.log"
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "app.worker",
                    "--config",
                    WorkerConfig(**settings).to_json(),
                    *arguments,
                ],
                env=clean_environment(directory)
                | {"OMP_NUM_THREADS": "1"},  # two threads on busy cores only spin
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=pass_fds,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait_ready(self) -> Worker:
        Region.attach(self.path, timeout_s=60).close()
        return self

    def attach(self) -> Region:
        return Region.attach(self.path, timeout_s=60)

    def raw(self, **options) -> RawClient:
        return RawClient(self.path, **options)

    def stats(self) -> wire.StatsReply:
        with self.raw() as client:
            return client.call(wire.Stats(id=1))

    def wait_idle(self) -> wire.StatsReply:
        """Waits until nobody but the asker is connected and nothing is held."""

        def idle():
            stats = self.stats()
            free = stats.leases_active == stats.slots_leased == stats.queue_depth == 0
            return stats if free and stats.connections == 1 else None

        return wait_until(idle, 20)

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def resident_bytes(self) -> int:
        """Private memory; the slab is shared."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) << 10
        raise AssertionError("no RssAnon")

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def wait(self, timeout_s: float = 60) -> int:
        return self.process.wait(timeout_s)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.wait(30)


def stats_of(region: Region) -> wire.StatsReply:
    return region.connection.call(wire.Stats(id=0), wire.StatsReply, Deadline(30))
