"""Slots, leases and epochs: which rows are whose, and until when. Pure bookkeeping: no sockets, no threads, no torch.

A slot takes rows until it is full, then the next slot without leases is recycled. The truth lies in this object; the
control page is written, never read back. All times are seconds on a monotonic clock.
"""

from __future__ import annotations

import math
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Literal, Protocol

from .call_error import CallError
from .lease_records import Hold, Holder, Lease, Placement, Slot

REMEMBERED: Final = 65536
SHORTEST_RETRY_S: Final = 0.1
LONGEST_RETRY_S: Final = 1.0


def new_lease_id() -> str:
    """128 random bits in hexadecimal."""
    return secrets.token_hex(16)


class Page(Protocol):
    """What readers see of the slots: the control page."""

    def set_sequence(self, slot: int, sequence: int) -> None:
        """Stores a slot's seqlock word."""

    def set_step(self, slot: int, *, step: int, rows: int) -> None:
        """Notes the step that last wrote to a slot, and its rows."""


class Ledger:
    """All slots and leases of one exporter.

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
        self._lapsed: dict[Holder, set[str]] = {}
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

        Followers' holds end early where nothing else makes room.

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
                retry_after_s=self._retry_after_s(),
            )
        for slot in {slot.index: slot for slot, recycle in chosen if recycle}.values():
            self._evict(slot)
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
        self,
        placement: Placement,
        token_ids: list[int],
        *,
        index: int,
        holder: Holder,
        ttl_s: float,
        lease_id: str | None = None,
    ) -> Lease:
        """Turns a written reservation into a lease of ``holder``, of a new id unless one was announced for it."""
        lease = Lease(lease_id or new_lease_id(), index, placement, token_ids)
        slot = self._slots[placement.slot]
        slot.leases.add(lease.lease_id)
        slot.named = True
        self._leases[lease.lease_id] = lease
        self._take_hold(lease, holder, ttl_s)
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
        """Makes ``holder`` one of a lease's holders, once more if it is one already; errors as ``find``."""
        lease = self.find(lease_id)
        self._take_hold(lease, holder, ttl_s)
        return lease

    def follow(self, lease: Lease, holder: Holder, ttl_s: float) -> int:
        """As ``hold`` for a lease just published, but the hold ends early when the room is needed; times held now."""
        return self._take_hold(lease, holder, ttl_s, firm=False)

    def renew(self, lease_id: str, holder: Holder, ttl_s: float) -> Lease:
        """Sets the deadline of a holder anew; a follower becomes a holder like any other.

        Raises:
            CallError: as ``find``, and for somebody whose hold ran out (``lease_expired``) or never was.
        """
        lease = self.find(lease_id)
        if holder in lease.lapsed:
            raise CallError("lease_expired", "Your hold of the lease ran out; call hold or forward again.")
        if holder not in lease.holders:
            raise CallError("lease_not_found", "Only a holder renews a lease; call hold first.")
        self._set_deadline(lease.holders[holder], self._clock() + ttl_s)
        lease.holders[holder].firm = True
        return lease

    def release(self, lease_id: str, holder: Holder) -> bool:
        """Gives back one of a holder's holds; false when there was none."""
        lease = self._leases.get(lease_id)
        if lease is None or holder not in lease.holders:
            return False
        hold = lease.holders[holder]
        hold.times -= 1
        if not hold.times:
            self._drop_holder(lease, holder, "released")
        return True

    def times_held(self, lease_id: str, holder: Holder) -> int:
        """How many holds of the lease ``holder`` has."""
        lease = self._leases.get(lease_id)
        return lease.holders[holder].times if lease is not None and holder in lease.holders else 0

    def leave(self, holder: Holder) -> None:
        """Ends all holds of a holder at once: its connection is gone."""
        for lease_id in list(self._held.get(holder, ())):
            self._drop_holder(self._leases[lease_id], holder, "released")
        for lease_id in self._lapsed.pop(holder, ()):
            self._leases[lease_id].lapsed.discard(holder)

    def expire(self) -> None:
        """Ends holds whose deadline has passed."""
        now = self._clock()
        if now < self._no_end_before:
            return
        for lease in list(self._leases.values()):
            for holder in [one for one, hold in lease.holders.items() if now >= hold.deadline]:
                self._end_early(lease, holder)
        deadlines = (hold.deadline for lease in self._leases.values() for hold in lease.holders.values())
        self._no_end_before = min(deadlines, default=math.inf)

    def expires_in_s(self, lease: Lease, holder: Holder) -> float:
        """Seconds until a hold ends."""
        return max(0.0, lease.holders[holder].deadline - self._clock())

    def _slots_needed(self, lengths: list[int]) -> int:
        needed, room = 0, 0
        for length in lengths:
            if length > room:
                needed, room = needed + 1, self.rows_per_slot
            room -= length
        return needed

    def _choose(self, lengths: list[int]) -> list[tuple[Slot, bool]] | None:
        """For each prompt a slot, and whether it is to be recycled first; ``None`` when there is not enough room.

        Appending to the open slot comes first. Where it leads nowhere, a fresh start may: prompts can divide
        differently among the slots. Followers give way last.
        """
        left = self.rows_per_slot - self._open.used_rows
        for yielding in (False, True):
            for room in (left, 0):
                chosen = self._fit(lengths, room, yielding=yielding)
                if chosen is not None:
                    return chosen
        return None

    def _fit(self, lengths: list[int], room: int, *, yielding: bool) -> list[tuple[Slot, bool]] | None:
        """Prompts in order, from the open slot with ``room`` rows on."""
        chosen: list[tuple[Slot, bool]] = []
        slot = self._open
        taken: set[int] = set()
        for length in lengths:
            recycle = length > room
            if recycle:
                following = self._next_free(slot.index, taken, yielding=yielding)
                if following is None:
                    return None
                slot, room = following, self.rows_per_slot
            taken.add(slot.index)
            room -= length
            chosen.append((slot, recycle))
        return chosen

    def _next_free(self, after: int, taken: set[int], *, yielding: bool) -> Slot | None:
        """The next slot, in turn, that is free and not used by the same call."""
        count = len(self._slots)
        in_turn = [self._slots[(after + distance) % count] for distance in range(1, count + 1)]
        candidates = [slot for slot in in_turn if slot.index not in taken]
        free = next((slot for slot in candidates if slot.free), None)
        if free is None and yielding:
            return next((slot for slot in candidates if self._yields(slot)), None)
        return free

    def _yields(self, slot: Slot) -> bool:
        """Whether nobody who asked holds rows of the slot."""
        return not slot.pending and not any(self._leases[lease_id].firm for lease_id in slot.leases)

    def _evict(self, slot: Slot) -> None:
        """Ends followers' holds of a slot that is about to be recycled."""
        for lease in [self._leases[lease_id] for lease_id in slot.leases]:
            for holder in list(lease.holders):
                self._end_early(lease, holder)

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

    def _take_hold(self, lease: Lease, holder: Holder, ttl_s: float, *, firm: bool = True) -> int:
        deadline = self._clock() + ttl_s
        hold = lease.holders.setdefault(holder, Hold(deadline))
        hold.times += 1
        hold.firm = hold.firm or firm
        self._set_deadline(hold, max(hold.deadline, deadline))
        self._forget_lapse(lease, holder)
        self._held.setdefault(holder, set()).add(lease.lease_id)
        return hold.times

    def _set_deadline(self, hold: Hold, deadline: float) -> None:
        hold.deadline = deadline
        self._no_end_before = min(self._no_end_before, deadline)

    def _end_early(self, lease: Lease, holder: Holder) -> None:
        """Ends a hold that its holder has not released."""
        lease.lapsed.add(holder)
        self._lapsed.setdefault(holder, set()).add(lease.lease_id)
        self.expired += 1
        self._drop_holder(lease, holder, "expired")

    def _forget_lapse(self, lease: Lease, holder: Holder) -> None:
        lease.lapsed.discard(holder)
        lapsed = self._lapsed.get(holder)
        if lapsed is not None:
            lapsed.discard(lease.lease_id)
            if not lapsed:
                del self._lapsed[holder]

    def _drop_holder(self, lease: Lease, holder: Holder, why: Literal["released", "expired"]) -> None:
        del lease.holders[holder]
        held = self._held[holder]
        held.discard(lease.lease_id)
        if not held:
            del self._held[holder]
        if lease.holders:
            return
        for gone in list(lease.lapsed):
            self._forget_lapse(lease, gone)
        del self._leases[lease.lease_id]
        self._slots[lease.placement.slot].leases.discard(lease.lease_id)
        self._gone[lease.lease_id] = why
        if len(self._gone) > REMEMBERED:
            self._gone.popitem(last=False)

    def _retry_after_s(self) -> float:
        """Seconds after which to ask again.

        By the first end of a slot's leases there is room for certain, unless they are renewed; most are released long
        before it.
        """
        ends = [
            max(hold.deadline for lease_id in slot.leases for hold in self._leases[lease_id].holders.values())
            for slot in self._slots
            if slot.leases
        ]
        first = min(ends, default=0.0) - self._clock()
        return min(LONGEST_RETRY_S, max(SHORTEST_RETRY_S, first))
