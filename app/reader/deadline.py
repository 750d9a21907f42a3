"""How long a call may take."""

from __future__ import annotations

import time


class Deadline:
    """A point on the monotonic clock, or never."""

    def __init__(self, timeout_s: float | None) -> None:
        self._at = None if timeout_s is None else time.monotonic() + timeout_s

    def left_s(self) -> float | None:
        """Seconds left; ``TimeoutError`` when there are none."""
        if self._at is None:
            return None
        left = self._at - time.monotonic()
        if left <= 0:
            raise TimeoutError("the worker did not answer in time")
        return left
