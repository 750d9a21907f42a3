"""What the ledger keeps: slots, rows of prompts in them, leases of these rows, holds of these leases."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TypeAlias

Holder: TypeAlias = Hashable


@dataclass(slots=True)
class Slot:
    """One slot. ``sequence`` is the even word of its rows; while ``dirty``, the page shows the odd one before it."""

    index: int
    sequence: int = 2
    used_rows: int = 0
    named: bool = False
    dirty: bool = False
    pending: int = 0
    leases: set[str] = field(default_factory=set)

    @property
    def free(self) -> bool:
        """Nobody holds its rows and nothing is about to be written to it."""
        return not self.leases and not self.pending


@dataclass(frozen=True, slots=True)
class Placement:
    """Rows that belong to one prompt: written, or about to be."""

    slot: int
    sequence: int
    row_start: int
    num_tokens: int


@dataclass(slots=True)
class Hold:
    """One holder's part in a lease.

    Attributes:
        deadline: monotonic seconds at which it ends.
        times: how often it was taken and not released yet: a connection may hold for several readers at once.
        firm: whether anybody asked for it. One that only following steps brought gives way when room is needed.
    """

    deadline: float
    times: int = 0
    firm: bool = False


@dataclass(slots=True)
class Lease:
    """Published rows and who holds them until when."""

    lease_id: str
    index: int
    placement: Placement
    token_ids: list[int]
    holders: dict[Holder, Hold] = field(default_factory=dict)
    lapsed: set[Holder] = field(default_factory=set)

    @property
    def firm(self) -> bool:
        """Whether anybody asked for it, rather than only being told of it."""
        return any(hold.firm for hold in self.holders.values())
