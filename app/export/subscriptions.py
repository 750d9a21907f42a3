"""What one connection follows: state changes, published steps. Nobody waits for a follower that does not keep up."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from ..transport import messages as wire
from .call_error import CallError
from .lease_records import Lease
from .leases import Ledger

if TYPE_CHECKING:
    from .connection import Connection

MAX_SUBSCRIPTIONS: Final = 16
MAX_STEPS_HELD: Final = 4


class _Steps:
    """One subscription to steps."""

    def __init__(self, request_id: int, ttl_s: float) -> None:
        self.request_id = request_id
        self.ttl_s = ttl_s
        self.missed = 0
        self.held: deque[dict[str, int]] = deque()  # per step its leases, and how often they were held then


class Subscriptions:
    """The subscriptions of a connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._states: set[int] = set()
        self._steps: dict[int, _Steps] = {}

    def add(self, request: wire.Subscribe) -> None:
        """Begins a subscription.

        Raises:
            CallError: ``invalid_request`` for an id in use, ``overloaded`` beyond 16 of them.
        """
        if request.id in self._states or request.id in self._steps:
            raise CallError("invalid_request", "A subscription of this id stands; number calls anew.")
        if len(self._states | self._steps.keys()) >= MAX_SUBSCRIPTIONS:
            raise CallError(
                "overloaded", f"A connection may have {MAX_SUBSCRIPTIONS} subscriptions; cancel one."
            )
        if "state" in request.topics:
            self._states.add(request.id)
        if "steps" in request.topics:
            self._steps[request.id] = _Steps(request.id, request.lease_ttl_s)

    def end(self, request_id: int) -> bool:
        """Ends a subscription; false when there was none. Leases that it brought stay until they are released."""
        found = request_id in self._states or request_id in self._steps
        self._states.discard(request_id)
        self._steps.pop(request_id, None)
        return found

    def state_changed(self, state: wire.WorkerState) -> None:
        """Tells of a new state."""
        for request_id in self._states:
            self._connection.send(wire.StateEvent(id=request_id, state=state))

    def published(self, ledger: Ledger, epoch: str, step: int, leases: list[Lease]) -> None:
        """Tells of published rows, each lease held for the follower.

        A follower that has not read its last event, or still holds four steps, misses this one, and is told how many
        it missed with the next.
        """
        for one in self._steps.values():
            while one.held and not self._still_holds(ledger, one.held[0]):
                one.held.popleft()
            if self._connection.channel.unsent_bytes or len(one.held) >= MAX_STEPS_HELD:
                one.missed += 1
                continue
            one.held.append(
                {lease.lease_id: ledger.follow(lease, self._connection, one.ttl_s) for lease in leases}
            )
            described = [self._connection.describe_lease(lease) for lease in leases]
            event = wire.StepEvent(
                id=one.request_id, epoch=epoch, step=step, missed=one.missed, leases=described
            )
            one.missed = 0
            self._connection.send(event)

    def _still_holds(self, ledger: Ledger, step: dict[str, int]) -> bool:
        """Whether nothing was released of any of a step's leases, which the connection may hold otherwise as well."""
        return any(ledger.times_held(lease_id, self._connection) >= times for lease_id, times in step.items())
