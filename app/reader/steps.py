"""Following the worker's published steps, for training a drafter beside live traffic."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import msgspec

from ..transport import messages as wire
from ..transport.errors import StaleLeaseError
from .connection import Connection
from .deadline import Deadline
from .lease import Lease

if TYPE_CHECKING:
    from .region import Region


@dataclass(frozen=True, slots=True)
class Step:
    """One published step.

    Attributes:
        step: the worker's count of steps.
        missed: steps since the last one seen here that this reader was not given.
        leases: the rows of the step's prompts.
        stream: where it came from, which would end with its last reference.
    """

    step: int
    missed: int
    leases: list[Lease]
    stream: StepStream = field(repr=False)


class _Inbox:
    """The newest event that nobody has taken; touched under the connection's lock, from whichever thread reads."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.newest: wire.StepEvent | None = None

    def offer(self, event: wire.StepEvent) -> None:
        older = self.newest
        if older is not None:
            self._connection.release_later(older.leases)
            event = msgspec.structs.replace(event, missed=event.missed + older.missed + 1)
        self.newest = event

    def take(self) -> wire.StepEvent | None:
        newest, self.newest = self.newest, None
        return newest


class StepStream:
    """Iterates over steps: always the newest, never a backlog; what was skipped is counted in ``missed``.

    The leases of a step are released when the next one is asked for: copy what has to live longer. Ends quietly when
    the stream or its region is closed here, and with ``ConnectionLostError`` when the worker is gone.
    """

    def __init__(self, region: Region, lease_ttl_s: float, timeout_s: float | None) -> None:
        self._region = region
        self._connection = region.connection
        self._ttl_s = lease_ttl_s
        self._timeout_s = timeout_s
        self._inbox = _Inbox(region.connection)
        self._current: list[Lease] = []
        self._lost = 0
        self._closed = False
        request = wire.Subscribe(id=0, topics=["steps"], lease_ttl_s=lease_ttl_s)
        deadline = Deadline(region.timeout_s)
        self._id = self._connection.call(request, wire.SubscribeReply, deadline, self._inbox.offer).id

    def close(self) -> None:
        """Ends the subscription and releases the current step's leases; idempotent."""
        if self._closed:
            return
        self._closed = True
        self._release_current()
        self._connection.unsubscribe(self._id)
        newest = self._inbox.take()
        if newest is not None and self._region.why_unusable() is None:
            self._connection.release(newest.leases)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Step:
        """The newest step, waiting for one if need be.

        Raises:
            TimeoutError: none came within ``timeout_s`` seconds; the stream stays usable.
            ConnectionLostError: the worker is gone.
        """
        deadline = Deadline(self._timeout_s)
        self._release_current()
        while True:
            if self._closed or self._region.closed:
                raise StopIteration
            self._connection.drain()
            self._connection.run_until(self._settled, deadline)
            event = self._connection.under_lock(self._inbox.take)
            if event is None:
                continue
            leases = self._leases_of(event)
            if leases is None:
                self._lost += event.missed + 1
                continue
            missed, self._lost = event.missed + self._lost, 0
            self._current = leases
            return Step(event.step, missed, leases, self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_id"):
            self.close()

    def _settled(self) -> bool:
        return self._inbox.newest is not None or self._closed or self._region.closed

    def _leases_of(self, event: wire.StepEvent) -> list[Lease] | None:
        """The event's leases, ``None`` when they ran out on the way.

        How long an event lay in the socket is not known, so the time counts from when the socket was last seen empty.
        After a long pause that is too strict; renewing sets it right.
        """
        received_after = self._connection.quiet_at
        try:
            leases = [self._region.adopt(lease, received_after) for lease in event.leases]
            for lease in leases:
                if lease.deadline <= time.monotonic():
                    lease.renew(self._ttl_s)
        except StaleLeaseError:
            self._connection.release(event.leases)
            return None
        return leases

    def _release_current(self) -> None:
        leases, self._current = self._current, []
        held = [lease for lease in leases if not lease.released]
        if held and self._region.why_unusable() is None:
            self._region.mapping.synchronize_device()
            for lease in held:
                lease.released = True
            self._connection.release([lease.descriptor for lease in held])
