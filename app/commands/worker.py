"""``draftport worker``: the worker process on its own."""

from __future__ import annotations

import importlib

from ..main import worker_config
from ..settings import Settings, unknown_variables

COULD_NOT_START = 2


def run(settings: Settings) -> int:
    """Holds the target until SIGTERM; the exit status."""
    from ..serve import fail  # noqa: PLC0415

    unknown = unknown_variables()
    if unknown:
        fail(f"There is no setting {', '.join(unknown)}; `draftport worker --help` lists all.")
        return COULD_NOT_START
    entry = importlib.import_module("..worker.__main__", __package__)
    status: int = entry.main(["--config", worker_config(settings).to_json()])
    return status
