"""What a forked child must forget: a socket that two processes read gives each of them half of the answers."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forgetful(Protocol):
    """Something that belongs to the process that made it."""

    def forget_after_fork(self) -> None:
        """Called in a child, for what it inherited."""


_live: weakref.WeakSet[Forgetful] = weakref.WeakSet()


def remember(one: Forgetful) -> None:
    """Has ``one`` told in every child forked from here on, as long as it lives."""
    _live.add(one)


def _forget_all() -> None:
    for one in list(_live):
        one.forget_after_fork()


os.register_at_fork(after_in_child=_forget_all)
