"""Loading progress: in the state that clients see, and as a bar where somebody watches a terminal."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Final, Self

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from ..transport import messages as wire

TELL_EVERY_S: Final = 0.2


class LoadingProgress:
    """Takes byte counts from any thread and passes them on, not too often."""

    def __init__(self, tell: Callable[[wire.WorkerState], None]) -> None:
        self._tell = tell
        self._lock = threading.Lock()
        self._told_at = 0.0
        self._bar = _bar() if sys.stderr.isatty() else None
        self._task = self._bar.add_task("weights", total=None) if self._bar is not None else None

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def on_bytes(self, loaded: int, total: int) -> None:
        """Notes how many bytes of weights were read, of how many."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=loaded, total=total)
        with self._lock:
            now = time.monotonic()
            if now - self._told_at < TELL_EVERY_S and loaded < total:
                return
            self._told_at = now
        progress = wire.Progress(bytes_loaded=loaded, bytes_total=total)
        self._tell(wire.WorkerState("loading", "Reading weights.", progress))


def _bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)
