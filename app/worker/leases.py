"""Slots, leases and epochs: which rows are whose, and until when. Pure bookkeeping: no sockets, no threads, no torch.

A slot takes rows until it is full, then the next slot without leases is recycled. The truth lies in this object; the
control page is written, never read back. All times are seconds on a monotonic clock.
"""

from __future__ import annotations

import math
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, TypeAlias

from .call_error import CallError

Holder: TypeAlias = Hashable
REMEMBERED: Final = 65536
SHORTEST_RETRY_S: Final = 0.1


class Page(Protocol):
    """What readers see of the slots: the control page."""

    def set_sequence(self, slot: int, sequence: int) -> None:
        """Stores a slot's seqlock word."""

    def set_step(self, slot: int, *, step: int, rows: int) -> None:
        """Notes the step that last wrote to a slot, and its rows."""


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
class Lease:
    """Published rows and who holds them until when."""

    lease_id: str
    index: int
    placement: Placement
    token_ids: list[int]
    holders: dict[Holder, float] = field(default_factory=dict)
    lapsed: set[Holder] = field(default_factory=set)


class Ledger:
    """All slots and leases of one worker.

    Args:
        slots: number of slots.
        rows_per_slot: rows of each.
        page: where readers look.
        clock: monotonic seconds.
    """

    def __init__(
        self, slots: int, rows_per_slot: int, page: Page, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.rows_per_slot = rows_per_slot
        self.expired = 0
        self._clock = clock
        self._page = page
        self._slots = [Slot(index) for index in range(slots)]
        self._open = self._slots[0]
        self._leases: dict[str, Lease] = {}
        self._held: dict[Holder, set[str]] = {}
        self._no_end_before = math.inf  # a lower bound of all deadlines, so that most calls need not look
        self._gone: OrderedDict[str, Literal["released", "expired"]] = OrderedDict()
        for slot in self._slots:
            page.set_sequence(slot.index, slot.sequence)

    def __len__(self) -> int:
        return len(self._leases)

    @property
    def slots_leased(self) -> int:
        """Slots with at least one lease."""
        return sum(bool(slot.leases) for slot in self._slots)

    def held_by(self, holder: Holder) -> int:
        """How many leases one holder holds."""
        return len(self._held.get(holder, ()))

    def reserve(self, lengths: list[int]) -> list[Placement]:
        """Rows for prompts of these lengths, all or none; until ``settle`` their slots are not recycled.

        Raises:
            CallError: ``slab_full`` when leases are in the way, ``prompts_exceed_slab`` when not even an empty slab
                could hold them.
        """
        if self._slots_needed(lengths) > len(self._slots):
            raise CallError(
                "prompts_exceed_slab",
                f"{sum(lengths)} tokens do not fit into {len(self._slots)} slots of {self.rows_per_slot} rows; "
                "send fewer prompts at once, or raise SLOTS.",
            )
        self.expire()
        chosen = self._choose(lengths)
        if chosen is None:
            raise CallError(
                "slab_full",
                "Every slot is leased; release leases, let them run out, or raise SLOTS.",
                retry_after_s=self._earliest_end_s(),
            )
        return [
            self._take(slot, length, recycle=recycle)
            for (slot, recycle), length in zip(chosen, lengths, strict=True)
        ]

    def written(self, placements: list[Placement], step: int) -> None:
        """Notes that the device has finished writing these rows: their slots are stable from now on."""
        for slot in {self._slots[one.slot].index: self._slots[one.slot] for one in placements}.values():
            self._page.set_step(slot.index, step=step, rows=slot.used_rows)
            if slot.dirty:
                slot.dirty = False
                self._page.set_sequence(slot.index, slot.sequence)

    def settle(self, placements: list[Placement]) -> None:
        """Ends reservations, once the device will write no more to their rows; after ``publish``, if at all."""
        for placement in placements:
            self._slots[placement.slot].pending -= 1

    def publish(
        self, placement: Placement, token_ids: list[int], *, index: int, holder: Holder, ttl_s: float
    ) -> Lease:
        """Turns a written reservation into a lease of ``holder``."""
        lease = Lease(secrets.token_hex(16), index, placement, token_ids)
        slot = self._slots[placement.slot]
        slot.leases.add(lease.lease_id)
        slot.named = True
        self._leases[lease.lease_id] = lease
        self._add_holder(lease, holder, ttl_s)
        return lease

    def find(self, lease_id: str) -> Lease:
        """A lease that somebody holds.

        Raises:
            CallError: ``lease_expired`` when it ran out, else ``lease_not_found``.
        """
        self.expire()
        lease = self._leases.get(lease_id)
        if lease is not None:
            return lease
        if self._gone.get(lease_id) == "expired":
            raise CallError("lease_expired", "The lease ran out; call forward again.")
        raise CallError("lease_not_found", "Nobody holds a lease of this id; call forward again.")

    def hold(self, lease_id: str, holder: Holder, ttl_s: float) -> Lease:
        """Makes ``holder`` one of a lease's holders, or sets its deadline anew; errors as ``find``."""
        lease = self.find(lease_id)
        self._add_holder(lease, holder, ttl_s)
        return lease

    def renew(self, lease_id: str, holder: Holder, ttl_s: float) -> Lease:
        """Sets the deadline of a holder anew.

        Raises:
            CallError: as ``find``, and for somebody whose hold ran out (``lease_expired``) or never was.
        """
        lease = self.find(lease_id)
        if holder in lease.lapsed:
            raise CallError("lease_expired", "Your hold of the lease ran out; call hold or forward again.")
        if holder not in lease.holders:
            raise CallError("lease_not_found", "Only a holder renews a lease; call hold first.")
        self._add_holder(lease, holder, ttl_s)
        return lease

    def release(self, lease_id: str, holder: Holder) -> bool:
        """Ends a hold; false when there was none."""
        lease = self._leases.get(lease_id)
        if lease is None or holder not in lease.holders:
            return False
        self._drop_holder(lease, holder, "released")
        return True

    def holds(self, lease_id: str, holder: Holder) -> bool:
        """Whether ``holder`` holds the lease."""
        lease = self._leases.get(lease_id)
        return lease is not None and holder in lease.holders

    def leave(self, holder: Holder) -> None:
        """Ends all holds of a holder at once: its connection is gone."""
        for lease_id in list(self._held.get(holder, ())):
            self._drop_holder(self._leases[lease_id], holder, "released")

    def expire(self) -> None:
        """Ends holds whose deadline has passed."""
        now = self._clock()
        if now < self._no_end_before:
            return
        for lease in list(self._leases.values()):
            for holder in [one for one, deadline in lease.holders.items() if now >= deadline]:
                lease.lapsed.add(holder)
                self.expired += 1
                self._drop_holder(lease, holder, "expired")
        deadlines = (deadline for lease in self._leases.values() for deadline in lease.holders.values())
        self._no_end_before = min(deadlines, default=math.inf)

    def expires_in_s(self, lease: Lease, holder: Holder) -> float:
        """Seconds until a hold ends."""
        return max(0.0, lease.holders[holder] - self._clock())

    def _slots_needed(self, lengths: list[int]) -> int:
        needed, room = 0, 0
        for length in lengths:
            if length > room:
                needed, room = needed + 1, self.rows_per_slot
            room -= length
        return needed

    def _choose(self, lengths: list[int]) -> list[tuple[Slot, bool]] | None:
        """For each prompt a slot, and whether it is to be recycled first; ``None`` when there is not enough room."""
        chosen: list[tuple[Slot, bool]] = []
        slot, room = self._open, self.rows_per_slot - self._open.used_rows
        taken: set[int] = set()
        for length in lengths:
            recycle = length > room
            if recycle:
                following = self._next_free(slot.index, taken)
                if following is None:
                    return None
                slot, room = following, self.rows_per_slot
            taken.add(slot.index)
            room -= length
            chosen.append((slot, recycle))
        return chosen

    def _next_free(self, after: int, taken: set[int]) -> Slot | None:
        """The next slot, in turn, that is free and not used by the same call."""
        count = len(self._slots)
        in_turn = (self._slots[(after + distance) % count] for distance in range(1, count + 1))
        return next((slot for slot in in_turn if slot.free and slot.index not in taken), None)

    def _take(self, slot: Slot, length: int, *, recycle: bool) -> Placement:
        if recycle:
            slot.used_rows = 0
            if slot.named:
                slot.named = False
                slot.dirty = True
                self._page.set_sequence(slot.index, slot.sequence + 1)
                slot.sequence += 2
        self._open = slot
        placement = Placement(slot.index, slot.sequence, slot.used_rows, length)
        slot.used_rows += length
        slot.pending += 1
        return placement

    def _add_holder(self, lease: Lease, holder: Holder, ttl_s: float) -> None:
        deadline = self._clock() + ttl_s
        lease.holders[holder] = deadline
        self._no_end_before = min(self._no_end_before, deadline)
        lease.lapsed.discard(holder)
        self._held.setdefault(holder, set()).add(lease.lease_id)

    def _drop_holder(self, lease: Lease, holder: Holder, why: Literal["released", "expired"]) -> None:
        del lease.holders[holder]
        held = self._held[holder]
        held.discard(lease.lease_id)
        if not held:
            del self._held[holder]
        if lease.holders:
            return
        del self._leases[lease.lease_id]
        self._slots[lease.placement.slot].leases.discard(lease.lease_id)
        self._gone[lease.lease_id] = why
        if len(self._gone) > REMEMBERED:
            self._gone.popitem(last=False)

    def _earliest_end_s(self) -> float:
        """Seconds until, with nothing renewed, the first leased slot is free again."""
        ends = [
            max(max(self._leases[lease_id].holders.values()) for lease_id in slot.leases)
            for slot in self._slots
            if slot.leases
        ]
        return max(SHORTEST_RETRY_S, min(ends, default=self._clock()) - self._clock())
