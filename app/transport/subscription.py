"""The events of one ``subscribe``, as an async iterator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal, Self, TypeAlias

import msgspec

from . import messages as wire
from .errors import ConnectionLostError

Topic: TypeAlias = Literal["state", "steps"]
Event: TypeAlias = wire.StateEvent | wire.StepEvent


class Subscription:
    """Iterates over events, latest wins: of each topic at most one event waits for the consumer.

    A step event that a newer one replaces is counted in the newer one's ``missed`` and its leases are released. The
    iteration ends with ``ConnectionLostError`` when the worker is gone and quietly after ``close``.

    Attributes:
        state: the worker's state when the subscription began.
    """

    state: wire.WorkerState

    def __init__(
        self,
        on_end: Callable[[], None],
        release: Callable[[list[wire.LeaseDescriptor]], None],
        on_event: Callable[[Event], None] | None,
    ) -> None:
        self._on_end = on_end
        self._release = release
        self._on_event = on_event
        self._waiting: dict[type[Event], Event] = {}
        self._arrived = asyncio.Event()
        self._lost: ConnectionLostError | None = None
        self._closed = False

    def offer(self, event: Event) -> None:
        """Takes in an event from the wire."""
        if self._on_event is not None:
            self._on_event(event)
            return
        older = self._waiting.pop(type(event), None)
        if isinstance(older, wire.StepEvent) and isinstance(event, wire.StepEvent):
            self._release(older.leases)
            event = msgspec.structs.replace(event, missed=event.missed + older.missed + 1)
        self._waiting[type(event)] = event
        self._arrived.set()

    def end(self, lost: ConnectionLostError) -> None:
        """Lets the consumer know that no event will come any more."""
        self._lost = lost
        self._arrived.set()

    def close(self) -> None:
        """Ends the subscription at the worker and the iteration here; idempotent."""
        if self._closed:
            return
        self._closed = True
        for event in self._waiting.values():
            if isinstance(event, wire.StepEvent):
                self._release(event.leases)
        self._waiting.clear()
        self._on_end()
        self._arrived.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while not self._waiting:
            if self._closed:
                raise StopAsyncIteration
            if self._lost is not None:
                raise ConnectionLostError(str(self._lost))
            self._arrived.clear()
            await self._arrived.wait()
        return self._waiting.pop(next(iter(self._waiting)))
