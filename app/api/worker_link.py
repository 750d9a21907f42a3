"""The API process's side of the worker: started here, attached to, or absent. Its state, and its session while ready."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Protocol

from ..transport import messages as wire
from ..transport.client import WorkerClient
from ..transport.errors import ConnectionLostError, TransportError
from .problem import ProblemError
from .worker_session import WorkerSession

_logger = logging.getLogger(__name__)
RETRY_AFTER_S = 2.0
FIRST_BACK_OFF_S = 0.5
HEALTHY_AFTER_S = 60.0


class Connector(Protocol):
    """How to come by a worker.

    Attributes:
        longest_back_off_s: seconds between two attempts, at most.
        waiting: what to say while waiting for the next attempt.
    """

    longest_back_off_s: float
    waiting: str

    async def connect(self) -> WorkerClient:
        """A connection that has said hello; ``ConnectionLostError`` or ``OSError`` when there is none."""

    async def after_loss(self) -> str | None:
        """Waits until the worker is really gone; says why it must not be started again, if so."""

    async def stop(self) -> None:
        """Ends what was started."""


class WorkerLink:
    """Keeps a session with the worker, and starts over with back-off when it is lost.

    Args:
        connector: ``None``: there is no worker, and never will be.
        on_restart: called each time a worker takes the place of one that was lost.
    """

    def __init__(self, connector: Connector | None, on_restart: Callable[[], object] = lambda: None) -> None:
        self._connector = connector
        self._on_restart = on_restart
        self._session: WorkerSession | None = None
        self._task: asyncio.Task[None] | None = None
        self._had_one = False
        detail = "DRAFTPORT_WORKER=off: this process answers metadata only."
        self.state = (
            wire.WorkerState("disabled", detail) if connector is None else wire.WorkerState("starting")
        )

    @property
    def enabled(self) -> bool:
        """Whether there is to be a worker."""
        return self._connector is not None

    def start(self) -> None:
        """Begins to look for the worker; returns at once."""
        if self._connector is not None:
            self._task = asyncio.create_task(self._run(self._connector), name="worker-link")

    async def stop(self) -> None:
        """Ends the session and, where it was started here, the worker."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._connector is not None:
            await self._connector.stop()

    def session(self) -> WorkerSession:
        """The session of a ready worker.

        Raises:
            ProblemError: ``worker_disabled``, or ``worker_unavailable`` with what the worker is doing.
        """
        if self._session is not None and not self._session.client.closed.is_set():
            return self._session
        if not self.enabled:
            raise ProblemError("worker_disabled", "Start Draftport with DRAFTPORT_WORKER=embedded or attach.")
        state = self.state
        if state.state == "failed":
            # Nobody will start it again, so a Retry-After would be a lie.
            raise ProblemError("worker_unavailable", f"The worker failed: {state.detail}")
        doing = state.detail or "it is starting"
        raise ProblemError(
            "worker_unavailable",
            f"The worker is not ready ({state.state}: {doing}); try again.",
            retry_after_s=RETRY_AFTER_S,
        )

    async def stats(self, timeout_s: float = 0.5) -> wire.StatsReply | None:
        """The worker's counters, ``None`` where it cannot say in time."""
        session = self._session
        if session is None:
            return None
        try:
            async with asyncio.timeout(timeout_s):
                return await session.client.call(wire.Stats(id=0))
        except (TransportError, TimeoutError):
            return None

    async def _run(self, connector: Connector) -> None:
        back_off_s = FIRST_BACK_OFF_S
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                await self._live_once(connector)
            except (TransportError, OSError, TimeoutError) as error:
                _logger.warning("no connection to the worker: %s", error)
            final = await connector.after_loss()
            if final is not None:
                detail = self.state.detail if self.state.state == "failed" and self.state.detail else final
                self.set_state(wire.WorkerState("failed", detail))
                return
            if loop.time() - began > HEALTHY_AFTER_S:
                back_off_s = FIRST_BACK_OFF_S
            state: wire.WorkerStateName = "restarting" if self._had_one else "starting"
            self.set_state(
                wire.WorkerState(state, f"{connector.waiting}; the next attempt is in {back_off_s:g} s.")
            )
            await asyncio.sleep(back_off_s)
            back_off_s = min(back_off_s * 2, connector.longest_back_off_s)

    async def _live_once(self, connector: Connector) -> None:
        client = await connector.connect()
        if self._had_one:
            self._on_restart()
        self._had_one = True
        watch = _StateWatch(self, client)
        try:
            subscription = await client.subscribe(["state"], on_event=watch.on_event)
            watch.begin(subscription.state)
            await client.closed.wait()
        finally:
            client.close()
            self._close_session()

    async def open_session(self, client: WorkerClient) -> None:
        """Asks a ready worker for its region and target; from then on ``session`` answers."""
        try:
            description = await client.describe()
        except TransportError as error:
            _logger.warning("the worker cannot be used: %s", error)
            client.close()
            return
        self._close_session()
        self._session = WorkerSession(client, description)
        self.set_state(wire.WorkerState("ready"))

    def _close_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def set_state(self, state: wire.WorkerState) -> None:
        """Notes what the worker is doing."""
        if state.state != self.state.state:
            _logger.info("worker: %s%s", state.state, f" ({state.detail})" if state.detail else "")
        self.state = state


class _StateWatch:
    """Follows one connection's state events; an event may arrive before the subscription's own answer is looked at."""

    def __init__(self, link: WorkerLink, client: WorkerClient) -> None:
        self._link = link
        self._client = client
        self._begun = False
        self._opening: asyncio.Task[None] | None = None

    def begin(self, state: wire.WorkerState) -> None:
        if not self._begun:
            self._take(state)

    def on_event(self, event: wire.Reply) -> None:
        if isinstance(event, wire.StateEvent):
            self._take(event.state)

    def _take(self, state: wire.WorkerState) -> None:
        self._begun = True
        if state.state != "ready":
            self._link.set_state(state)
        elif self._opening is None:
            self._opening = asyncio.create_task(self._link.open_session(self._client))


class SocketConnector:
    """Attaches to a worker that somebody else runs, by its socket; which of the two starts first does not matter."""

    longest_back_off_s = 2.0
    waiting = "No worker listens on the socket"

    def __init__(self, path: str) -> None:
        self._path = path

    async def connect(self) -> WorkerClient:
        """See ``Connector``."""
        return await WorkerClient.connect(self._path, client_name="draftport-api")

    async def after_loss(self) -> None:
        """See ``Connector``: whoever runs it may start it again at any time."""

    async def stop(self) -> None:
        """See ``Connector``: it lives on."""


def problem_of(error: TransportError) -> ProblemError:
    """A failed call to the worker as REST shows it."""
    if isinstance(error, ConnectionLostError):
        detail = "The worker ended while it was working on this; send the request again."
        return ProblemError("worker_restarted", detail, retry_after_s=RETRY_AFTER_S)
    code = error.code
    retry_after_s = getattr(error, "retry_after_s", None)
    detail = getattr(error, "detail", "The call to the worker failed; send the request again.")
    return ProblemError(code, detail, retry_after_s=retry_after_s)
