"""The exporter's socket: accepts clients, and answers what needs no model while there is none."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ..transport import messages as wire
from ..transport.errors import FrameError
from .call_error import CallError
from .connection import Connection
from .exporter import Counters, Exporter
from .lease_records import Lease

_logger = logging.getLogger(__name__)
MAX_CONNECTIONS: Final = 256
LOADING_RETRY_S: Final = 2.0
ACCEPT_PAUSE_S: Final = 0.5
ACCEPTS_PER_TURN: Final = 16


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a client may keep the server waiting, in seconds, before it is hung up on.

    Attributes:
        hello_s: from its connecting to its hello.
        frame_s: from the first byte of a frame to the last.
        every_s: between two looks.
    """

    hello_s: float = 5.0
    frame_s: float = 30.0
    every_s: float = 1.0


class Server:
    """Everything that clients see of this worker.

    Attributes:
        epoch: 128 random bits in hexadecimal, new with every start.
        state: what the worker is doing.
    """

    def __init__(self, patience: Patience = Patience()) -> None:
        self._patience = patience
        self._watched: set[Connection] = set()
        self._watching: asyncio.TimerHandle | None = None
        self.epoch = secrets.token_hex(16)
        self.state = wire.WorkerState("starting")
        self._exporter: Exporter | None = None
        self._connections: set[Connection] = set()
        self._listener: socket.socket | None = None

    @property
    def idle(self) -> bool:
        """Whether no call is waiting for rows."""
        waiting = any(connection.busy for connection in self._connections)
        return not waiting and (self._exporter is None or not self._exporter.busy)

    @property
    def holding(self) -> bool:
        """Whether anybody holds a lease."""
        return self._exporter is not None and len(self._exporter.ledger) > 0

    def set_state(self, state: wire.WorkerState) -> None:
        """Notes and tells what the worker is doing."""
        if state == self.state:
            return
        self.state = state
        for connection in list(self._connections):
            connection.subscriptions.state_changed(state)

    def set_exporter(self, exporter: Exporter) -> None:
        """From now on calls that need the model are answered."""
        self._exporter = exporter

    def exporter(self) -> Exporter:
        """What fills the slab, also while the worker ends: who holds rows may finish with them.

        Raises:
            CallError: ``worker_unavailable`` with what the worker is doing.
        """
        if self._exporter is None:
            raise self._unavailable()
        return self._exporter

    def exporter_for_more(self) -> Exporter:
        """What fills the slab of a ready worker, for calls that bring more work or leases; errors as ``exporter``."""
        if self.state.state == "stopping":
            raise self._unavailable()
        return self.exporter()

    def _unavailable(self) -> CallError:
        detail = f"The worker is {self.state.state}; try again."
        return CallError("worker_unavailable", detail, retry_after_s=LOADING_RETRY_S)

    def greeting(self, request_id: int) -> wire.HelloReply:
        """The answer to ``hello``."""
        return wire.HelloReply(
            id=request_id,
            protocol_version=wire.PROTOCOL_VERSION,
            epoch=self.epoch,
            worker_pid=os.getpid(),
            state=self.state,
        )

    def stats(self, request_id: int) -> wire.StatsReply:
        """Counters and gauges; zeros while there is no model."""
        exporter = self._exporter
        counters = Counters() if exporter is None else exporter.counters
        return wire.StatsReply(
            id=request_id,
            steps=counters.steps,
            tokens=counters.tokens,
            prompts=counters.prompts,
            forwards=counters.forwards,
            rejected=counters.rejected,
            cancelled=counters.cancelled,
            leases_active=0 if exporter is None else len(exporter.ledger),
            leases_expired=0 if exporter is None else exporter.ledger.expired,
            slots_total=0 if exporter is None else exporter.slab.region.slots,
            slots_leased=0 if exporter is None else exporter.ledger.slots_leased,
            queue_depth=0 if exporter is None else exporter.queue_depth,
            queue_tokens=0 if exporter is None else exporter.queue_tokens,
            connections=len(self._connections),
            step_seconds_total=counters.step_seconds,
            rows_capacity_total=counters.capacity,
        )

    def published(self, step: int, leases: list[Lease]) -> None:
        """Tells followers of new rows."""
        ledger = self.exporter().ledger
        for connection in list(self._connections):
            connection.subscriptions.published(ledger, self.epoch, step, leases)

    def leave(self, connection: Connection) -> None:
        """A connection is gone."""
        if self._exporter is not None:
            self._exporter.leave(connection)

    def serve_connection(
        self, sock: socket.socket, on_end: Callable[[], None] = lambda: None, *, trusted: bool = True
    ) -> None:
        """Serves a connected socket; one that is not ``trusted`` has to keep to the server's patience."""

        def ended(connection: Connection) -> None:
            self._connections.discard(connection)
            self._watched.discard(connection)
            on_end()

        connection = Connection(self, sock, ended)
        self._connections.add(connection)
        if not trusted:
            self._watched.add(connection)

    def listen(self, listener: socket.socket) -> None:
        """Accepts clients from a listening socket."""
        listener.setblocking(False)  # noqa: FBT003 - the standard library's own signature
        self._listener = listener
        asyncio.get_running_loop().add_reader(listener, self._accept)
        self._watch()

    def stop_listening(self) -> None:
        """Accepts no more clients."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    def close(self) -> None:
        """Hangs up on everybody and ends what runs behind it."""
        self.stop_listening()
        if self._watching is not None:
            self._watching.cancel()
        for connection in list(self._connections):
            connection.channel.close()
        if self._exporter is not None:
            self._exporter.stop()

    def _accept(self) -> None:
        """Takes in those who wait, as many as are due: a burst must not have to wait for as many turns of the loop."""
        for _ in range(ACCEPTS_PER_TURN):
            if self._listener is None or not self._accept_one(self._listener):
                return

    def _accept_one(self, listener: socket.socket) -> bool:
        """Whether somebody was there."""
        try:
            sock, _ = listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return False
        except OSError as error:  # no descriptors left: let clients wait instead of spinning
            _logger.warning("cannot accept a client: %s", error)
            loop = asyncio.get_running_loop()
            loop.remove_reader(listener)
            loop.call_later(ACCEPT_PAUSE_S, self._accept_again)
            return False
        if len(self._connections) >= MAX_CONNECTIONS:
            _logger.warning("refusing a client: %s are connected", MAX_CONNECTIONS)
            sock.close()
            return True
        self.serve_connection(sock, trusted=False)
        return True

    def _watch(self) -> None:
        """Hangs up on those who neither say hello nor finish a frame: they would keep others out."""
        now = time.monotonic()
        for connection in list(self._watched):
            reason = connection.overdue(now, self._patience.hello_s, self._patience.frame_s)
            if reason is not None:
                connection.channel.close(FrameError(reason))
        self._watching = asyncio.get_running_loop().call_later(self._patience.every_s, self._watch)

    def _accept_again(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().add_reader(self._listener, self._accept)
