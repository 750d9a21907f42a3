"""A worker's life: listen, load, serve, end."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Final

from ..export import socket_file
from ..export.exporter_error import ExporterError
from ..export.server import Server
from ..transport import messages as wire
from ..transport.worker_config import WorkerConfig
from .engine import Engine
from .progress import LoadingProgress
from .target_error import TargetError

_logger = logging.getLogger(__name__)
START_UP_FAILURE: Final = 3
DRAIN_S: Final = 10.0
TELL_S: Final = 0.5
_PR_SET_PDEATHSIG: Final = 1


class Life:
    """Runs one worker until it is told to end, its parent is gone, or it cannot start."""

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._server = Server()
        self._status: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._socket: tuple[Path, int] | None = None

    async def run(self, parent: socket.socket | None) -> int:
        """The exit status: 0, or 3 when the worker could not start with these settings."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._drain_soon)
        try:
            if parent is not None:
                self._server.serve_connection(parent, lambda: self._end(0))
            try:
                self._listen()
            except ExporterError as error:
                await self._fail(error)
                return START_UP_FAILURE
            threading.Thread(target=self._load, args=(loop,), name="loader", daemon=True).start()
            return await self._status
        finally:
            if self._socket is not None:
                socket_file.unlink(*self._socket)
            self._server.close()

    def _listen(self) -> None:
        if self._config.socket_path is None:
            return
        path = Path(self._config.socket_path)
        self._server.listen(socket_file.bind(path, self._config.socket_group))
        self._socket = (path, path.stat().st_ino)
        _logger.info("listening on the worker's socket")

    def _load(self, loop: asyncio.AbstractEventLoop) -> None:
        """Runs on a thread of its own, for importing torch and reading weights take their time."""
        try:
            self._tell(loop, wire.WorkerState("loading", "Looking at the target."))
            engine_parts = self._load_target(loop)
        except TargetError as error:
            self._fail_soon(loop, error)
        except ModuleNotFoundError as error:
            self._fail_soon(loop, _not_installed(error))
        except Exception:
            _logger.exception("loading failed")
            broken = TargetError("worker_error", "Loading the target failed; the worker's log has the cause.")
            self._fail_soon(loop, broken)
        else:
            _from_thread(loop, lambda: self._ready(*engine_parts))

    def _load_target(self, loop: asyncio.AbstractEventLoop) -> tuple[object, object]:
        from .inspect_target import inspect_target  # noqa: PLC0415 - may bring torch
        from .make_slab import make_slab  # noqa: PLC0415

        plan = inspect_target(self._config)
        slab = make_slab(plan, self._config.slots, self._server.epoch)
        progress = LoadingProgress(lambda state: self._tell(loop, state))
        began = time.monotonic()
        with progress:
            target = plan.load(progress.on_bytes)
        _logger.info(
            "holding %s (%s, %s) after %.1f s",
            plan.description.model,
            plan.dtype,
            plan.device,
            time.monotonic() - began,
        )
        return target, slab

    def _tell(self, loop: asyncio.AbstractEventLoop, state: wire.WorkerState) -> None:
        _from_thread(loop, lambda: self._server.set_state(state))

    def _ready(self, target: object, slab: object) -> None:
        if self._server.state.state == "stopping":
            return
        engine = Engine(target, slab, self._config.max_queue_tokens, self._server.published)  # type: ignore[arg-type]  # as loaded
        self._server.set_exporter(engine)
        self._server.set_state(wire.WorkerState("ready"))

    def _fail_soon(self, loop: asyncio.AbstractEventLoop, error: ExporterError) -> None:
        _from_thread(loop, lambda: asyncio.ensure_future(self._fail(error)))

    async def _fail(self, error: ExporterError) -> None:
        """Says why before ending: the settings, not luck, are to blame, so nobody should try again."""
        _logger.error("cannot start: %s", error.detail)
        self._server.set_state(wire.WorkerState("failed", error.detail))
        await asyncio.sleep(TELL_S)
        self._end(START_UP_FAILURE)

    def _drain_soon(self) -> None:
        if self._server.state.state != "stopping":
            task = asyncio.ensure_future(self._drain())
            task.add_done_callback(lambda _: self._end(0))

    async def _drain(self) -> None:
        """Takes no more work, finishes what runs, and lets readers finish with what they hold, for a while."""
        engine_was_ready = self._server.state.state == "ready"
        self._server.set_state(wire.WorkerState("stopping", "It was told to end."))
        self._server.stop_listening()
        until = time.monotonic() + DRAIN_S
        while engine_was_ready and time.monotonic() < until:
            if self._server.idle and not self._server.holding:
                return
            await asyncio.sleep(0.02)

    def _end(self, status: int) -> None:
        if not self._status.done():
            self._status.set_result(status)


def _not_installed(error: ModuleNotFoundError) -> TargetError:
    detail = (
        f"The worker needs the package {error.name}, which is not installed: install draftport[worker], or set "
        "DRAFTPORT_WORKER=off to answer metadata only."
    )
    return TargetError("worker_not_installed", detail)


def _from_thread(loop: asyncio.AbstractEventLoop, act: object) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: the process is ending
        loop.call_soon_threadsafe(act)  # type: ignore[arg-type]  # a function without arguments


def die_with_parent() -> None:
    """Has the kernel end this process with its parent, should the loop ever be too busy to see the EOF."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise SystemExit(0)
