"""Starts the worker process and ends it. ``python -m app.worker`` with an inherited socket: no fork, no pickling."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from pathlib import Path

from ..transport.client import WorkerClient
from ..transport.worker_config import WorkerConfig

_logger = logging.getLogger(__name__)
START_UP_FAILURE_STATUS = 3
HELLO_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 5.0
_PACKAGE = __name__.partition(".")[0]


class SpawnConnector:
    """Starts a worker of its own for every connection; the connection is an inherited socket pair.

    The worker ends by itself when its end of the pair reads EOF, so not even ``kill -9`` of this process leaves one
    behind.
    """

    longest_back_off_s = 30.0
    waiting = "It ended"

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """The worker's process id, while it runs."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    async def connect(self) -> WorkerClient:
        """Starts the worker and says hello."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",  # the working directory may hold a package called app, too
                "-m",
                f"{_PACKAGE}.worker",
                "--config",
                self._config.to_json(),
                "--parent-fd",
                str(theirs.fileno()),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env=_environment(),
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return await WorkerClient.over(ours, client_name="draftport-api", timeout_s=HELLO_TIMEOUT_S)

    async def after_loss(self) -> str | None:
        """Waits for the process's end. A start-up failure is final: the same settings would only fail again."""
        process = self._process
        if process is None:
            return None
        status = await self._ended(process)
        _logger.warning("the worker process ended with status %s", status)
        if status == START_UP_FAILURE_STATUS:
            return "The worker could not start with these settings; its log says why."
        return None

    async def stop(self) -> None:
        """Ends the worker; its EOF has told it already."""
        if self._process is not None:
            await self._ended(self._process)

    @staticmethod
    async def _ended(process: asyncio.subprocess.Process) -> int:
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                return await process.wait()
        except TimeoutError:
            process.kill()
            return await process.wait()


def _environment() -> dict[str, str]:
    """This process's environment; the worker's settings travel on its command line."""
    kept = {name: value for name, value in os.environ.items() if not name.upper().startswith("DRAFTPORT_")}
    search = [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")]
    return kept | {"PYTHONUNBUFFERED": "1", "PYTHONPATH": os.pathsep.join(filter(None, search))}
