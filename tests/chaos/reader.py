"""A reader that trusts nothing: every row that its lease's check lets through is compared with what it must be.

``python reader.py SOCKET CONTENT LOG SEED``: works until SIGTERM, then writes its counts to LOG. What must never be is
written at once, for the reader may be killed at any moment.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

from content import Content

from app.reader import ConnectionLostError, Region, RemoteError, StaleLeaseError
from app.transport import messages as wire

# The worker may say these in passing; everything else is a fault.
PASSING = {
    "slab_full", "overloaded", "worker_unavailable", "worker_restarted", "stopping", "deadline_exceeded",
    "lease_expired", "lease_not_found",
}  # fmt: skip


class Reader:
    def __init__(self, socket_path: str, content: Content, log: Path, seed: int) -> None:
        self.socket_path = socket_path
        self.content = content
        self.log = log
        self.random = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.stopping = False

    def run(self) -> None:
        signal.signal(signal.SIGTERM, self.stop)
        while not self.stopping:
            try:
                with Region.attach(self.socket_path, timeout_s=5) as region:
                    self.stay(region)
            except RemoteError as error:
                self.passing(error)
            except (StaleLeaseError, ConnectionLostError, TimeoutError) as error:
                self.counts[type(error).__name__] += 1
                time.sleep(0.01)
            except Exception:  # noqa: BLE001 - anything else is what this looks for
                self.fault("untyped error", traceback.format_exc())
        self.write({"counts": self.counts})

    def stop(self, *_args: object) -> None:
        self.stopping = True

    def stay(self, region: Region) -> None:
        acts = (self.read_and_release, self.read_late, self.share, self.follow)
        for _ in range(self.random.randint(1, 60)):
            if self.stopping:
                return
            act = self.random.choices(acts, (60, 4, 8, 4))[0]
            try:
                act(region)
            except RemoteError as error:
                self.passing(error)

    def passing(self, error: RemoteError) -> None:
        if error.code not in PASSING:
            self.fault("unexpected code", f"{error.code}: {error.detail}")
        self.counts[error.code] += 1
        time.sleep(min(error.retry_after_s or 0.01, 0.05))

    def forward(self, region: Region, ttl_s: float = 30.0) -> list:
        return region.forward(self.content.draw(self.random), lease_ttl_s=ttl_s, timeout_s=20)

    def verify(self, lease) -> None:
        """Takes the rows, asks whether they may be used, and compares them if so."""
        rows = lease.numpy().copy()
        lease.check()
        self.counts["verified"] += 1
        if not self.content.is_right(lease.token_ids, rows):
            self.fault("wrong rows", f"{lease!r} after {self.counts['verified']} right ones")

    def read_and_release(self, region: Region) -> None:
        for lease in self.forward(region):
            with lease:
                self.verify(lease)

    def read_late(self, region: Region) -> None:
        """Looks again and again, also after the lease ran out: then the check must say so."""
        leases = self.forward(region, ttl_s=1.0)
        until = time.monotonic() + self.random.uniform(0, 1.5)
        while time.monotonic() < until:
            for lease in leases:
                self.verify(lease)
            time.sleep(0.05)

    def share(self, region: Region) -> None:
        """The hold ends behind the lease's back, as when another part of the program released it."""
        leases = self.forward(region)
        for lease in leases:
            region.connection.release([lease.descriptor])
        until = time.monotonic() + self.random.uniform(0, 0.4)
        while time.monotonic() < until:
            for lease in leases:
                self.verify(lease)

    def follow(self, region: Region) -> None:
        with region.steps(lease_ttl_s=2, timeout_s=0.3) as steps:
            for _ in range(self.random.randint(1, 10)):
                for lease in next(steps).leases:
                    if self.random.random() < 0.5:
                        self.verify_if_known(lease)

    def verify_if_known(self, lease) -> None:
        if lease.token_ids in self.content.prompts:
            self.verify(lease)

    def fault(self, kind: str, detail: str) -> None:
        self.write({"fault": kind, "detail": detail})

    def write(self, line: dict) -> None:
        with self.log.open("a") as log:
            log.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    socket_path, content_path, log_path, seed_text = sys.argv[1:]
    assert wire.PROTOCOL_VERSION == 1
    Reader(socket_path, Content(Path(content_path)), Path(log_path), int(seed_text)).run()
