"""REST leases: whose they are, where their rows lie, and what became of them."""

from __future__ import annotations

import contextlib
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

from ..transport.messages import LeaseDescriptor

REMEMBERED = 16384


class RestLease(NamedTuple):
    """A lease that this process took for an API client.

    Attributes:
        lease: where the rows lie.
        epoch: the worker's epoch at that time; another one now means that the rows are gone.
        client: token or address of the API client.
        deadline: monotonic seconds, taken before the worker was asked, so never later than the worker's own.
    """

    lease: LeaseDescriptor
    epoch: str
    client: str
    deadline: float


class LeaseBook:
    """Leases by id, and for a while those that ended, so that clients learn which of the two it was.

    Lives on one event loop. The worker decides whether a lease lives; this is what REST adds to it.
    """

    def __init__(self) -> None:
        self._live: dict[str, RestLease] = {}
        self._held: Counter[str] = Counter()
        self._ended: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._live)

    def add(self, leases: list[LeaseDescriptor], *, epoch: str, client: str, deadline: float) -> None:
        """Notes leases that were just taken."""
        self.expire()
        for lease in leases:
            self._live[lease.lease_id] = RestLease(lease, epoch, client, deadline)
        self._held[client] += len(leases)

    def find(self, lease_id: str) -> RestLease | None:
        """A lease that has not ended."""
        found = self._live.get(lease_id)
        if found is not None and time.monotonic() >= found.deadline:
            self.end(lease_id)
            return None
        return found

    def has_ended(self, lease_id: str) -> bool:
        """Whether there was such a lease, as far as is remembered."""
        return lease_id in self._ended

    def renewed(self, lease: LeaseDescriptor, deadline: float) -> None:
        """Notes a new deadline."""
        old = self._live.get(lease.lease_id)
        if old is not None:
            self._live[lease.lease_id] = old._replace(lease=lease, deadline=deadline)

    def end(self, lease_id: str) -> None:
        """Notes that a lease ended."""
        gone = self._live.pop(lease_id, None)
        if gone is None:
            return
        self._drop(gone.client, 1)
        self._ended[lease_id] = None
        if len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)

    def end_other_epochs(self, epoch: str) -> None:
        """Notes that every lease of an earlier worker ended."""
        for lease_id in [key for key, one in self._live.items() if one.epoch != epoch]:
            self.end(lease_id)

    def held_by(self, client: str) -> int:
        """How many leases an API client holds now."""
        self.expire()
        return self._held[client]

    @contextlib.contextmanager
    def reserved(self, client: str, count: int) -> Iterator[None]:
        """Counts leases that are being asked for, so that requests at the same time cannot exceed a limit together."""
        self._held[client] += count
        try:
            yield
        finally:
            self._drop(client, count)

    def expire(self) -> None:
        """Drops leases whose deadline has passed."""
        now = time.monotonic()
        for lease_id in [key for key, one in self._live.items() if now >= one.deadline]:
            self.end(lease_id)

    def _drop(self, client: str, count: int) -> None:
        self._held[client] -= count
        if not self._held[client]:
            del self._held[client]
