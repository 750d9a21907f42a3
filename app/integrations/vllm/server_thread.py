"""The socket, served by a thread of the engine's worker process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ...export import socket_file
from ...export.lease_records import Lease
from ...export.server import Server
from ...export.slab import Slab
from ...transport import messages as wire
from .engine_api import EngineApi
from .exporter import VllmExporter

_logger = logging.getLogger(__name__)
START_TIMEOUT_S: Final = 30.0
STOP_TIMEOUT_S: Final = 5.0


class ServerThread:
    """Listens, and serves until it is stopped or the process ends.

    Args:
        path: the socket's.
        group: who may connect besides the owner.
        make_slab: makes the slab for an epoch.
        description: the target.
        longest_prompt: tokens that one prompt may have.
        make_api: makes the client of vLLM's API, on the thread's loop; ``None`` where there is none.

    Attributes:
        exporter: what the engine's thread fills.
        epoch: of this start.

    Raises:
        ExporterError: the socket cannot be made.
        MemoryError: the slab cannot be had.
    """

    exporter: VllmExporter

    def __init__(
        self,
        path: Path,
        group: str | None,
        *,
        make_slab: Callable[[str], Slab],
        description: wire.TargetDescription,
        longest_prompt: int,
        make_api: Callable[[], EngineApi] | None,
    ) -> None:
        self._server = Server()
        self.epoch = self._server.epoch
        slab = make_slab(self.epoch)
        self._path = path
        self._listener = socket_file.bind(path, group)
        self._inode = path.stat().st_ino
        self._make_api = make_api
        self._parts = (description, slab, longest_prompt)
        self._loop = asyncio.new_event_loop()
        self._ended = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="draftport", daemon=True)
        self._thread.start()
        if not self._ready.wait(START_TIMEOUT_S):
            raise TimeoutError("the thread that serves readers did not start")
        _logger.info("serving hidden states on %s, epoch %s", path, self.epoch)

    def stop(self) -> None:
        """Hangs up on everybody and removes the socket; idempotent."""
        with contextlib.suppress(RuntimeError):  # the loop is closed already
            self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(STOP_TIMEOUT_S)
        socket_file.unlink(self._path, self._inode)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        except Exception:  # said here, for nobody joins this thread
            _logger.exception("the thread that serves readers failed")
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        api = self._make_api() if self._make_api is not None else None
        self.exporter = VllmExporter(*self._parts, api, self._published)
        self._server.set_exporter(self.exporter)
        self._server.set_state(wire.WorkerState("ready"))
        self._server.listen(self._listener)
        self._ready.set()
        await self._ended.wait()
        self._server.close()
        await self.exporter.stopped()
        if api is not None:
            await api.close()

    def _published(self, step: int, leases: list[Lease]) -> None:
        self._server.published(step, leases)
