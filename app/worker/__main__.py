"""``python -m app.worker``: the worker process. ``draftport serve`` starts it; people start ``draftport worker``."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import socket
import sys

import msgspec

from ..transport.worker_config import WorkerConfig
from .life import START_UP_FAILURE, Life, die_with_parent


def main(arguments: list[str] | None = None) -> int:
    """Runs a worker; its exit status."""
    parser = argparse.ArgumentParser(prog="draftport-worker", description=__doc__)
    parser.add_argument("--config", required=True, help="settings as JSON")
    parser.add_argument("--parent-fd", type=int, help="connected unix socket whose EOF ends the worker")
    given = parser.parse_args(arguments)
    try:
        config = WorkerConfig.from_json(given.config)
    except msgspec.DecodeError as error:
        sys.stderr.write(f"draftport-worker: the settings cannot be read: {error}\n")
        return START_UP_FAILURE
    _configure_logging(config)
    parent = None
    if given.parent_fd is not None:
        die_with_parent()
        parent = socket.socket(fileno=given.parent_fd)
        parent.set_inheritable(False)
    return asyncio.run(_live(config, parent))


async def _live(config: WorkerConfig, parent: socket.socket | None) -> int:
    return await Life(config).run(parent)


def _configure_logging(config: WorkerConfig) -> None:
    handler = logging.StreamHandler()
    if config.log_format == "json" or (config.log_format == "auto" and not sys.stderr.isatty()):
        from pythonjsonlogger.json import JsonFormatter  # noqa: PLC0415 - only where it is wanted

        rename = {"levelname": "level", "name": "logger"}
        handler.setFormatter(
            JsonFormatter("%(levelname)s %(name)s %(message)s", rename_fields=rename, timestamp=True)
        )
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    logging.basicConfig(level=config.log_level, handlers=[handler], force=True)


if __name__ == "__main__":
    # Threads of libraries must not keep a worker alive whose parent is gone.
    STATUS = main()
    logging.shutdown()
    os._exit(STATUS)
