"""The ledger, used by two threads: the engine's, which fills slots, and the socket's, which answers clients."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final

from ...export.call_error import CallError
from ...export.lease_records import Holder, Lease, Placement
from ...export.leases import Ledger, Page

REMEMBERED: Final = 4096


class Waiting:
    """Holds rows for whoever comes for them first: the part of a request that vLLM's own API took in."""


WAITING: Final = Waiting()


class SharedLedger(Ledger):
    """As ``Ledger``; every call takes ``lock``, which may be held for several calls in a row.

    Rows of a request wait for their reader under the holder ``WAITING``; the first connection to hold the lease takes
    that place, so that a release gives the rows back at once rather than when their time is over. Leases that were
    announced and then refused are remembered, so that whoever comes for one learns why.
    """

    def __init__(self, slots: int, rows_per_slot: int, page: Page) -> None:
        self.lock = threading.RLock()
        self._refused: OrderedDict[str, CallError] = OrderedDict()
        super().__init__(slots, rows_per_slot, page)

    def refuse(self, lease_id: str, why: CallError) -> None:
        """Notes why an announced lease will not come."""
        with self.lock:
            self._refused[lease_id] = why
            if len(self._refused) > REMEMBERED:
                self._refused.popitem(last=False)

    def refused(self, lease_id: str) -> bool:
        """Whether an announced lease was refused."""
        return lease_id in self._refused

    def find(self, lease_id: str) -> Lease:
        """As ``Ledger.find``; for a refused lease the reason is raised."""
        with self.lock:
            why = self._refused.get(lease_id)
            if why is not None:
                raise CallError(why.code, why.detail, retry_after_s=why.retry_after_s)
            return super().find(lease_id)

    def hold(self, lease_id: str, holder: Holder, ttl_s: float) -> Lease:
        """As ``Ledger.hold``; rows that waited for a reader have found one."""
        with self.lock:
            lease = super().hold(lease_id, holder, ttl_s)
            if WAITING in lease.holders:
                super().release(lease_id, WAITING)
            return lease

    def reserve(self, lengths: list[int]) -> list[Placement]:
        """See ``Ledger``."""
        with self.lock:
            return super().reserve(lengths)

    def written(self, placements: list[Placement], step: int) -> None:
        """See ``Ledger``."""
        with self.lock:
            super().written(placements, step)

    def settle(self, placements: list[Placement]) -> None:
        """See ``Ledger``."""
        with self.lock:
            super().settle(placements)

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
        """See ``Ledger``."""
        with self.lock:
            return super().publish(
                placement, token_ids, index=index, holder=holder, ttl_s=ttl_s, lease_id=lease_id
            )

    def follow(self, lease: Lease, holder: Holder, ttl_s: float) -> int:
        """See ``Ledger``."""
        with self.lock:
            return super().follow(lease, holder, ttl_s)

    def renew(self, lease_id: str, holder: Holder, ttl_s: float) -> Lease:
        """See ``Ledger``."""
        with self.lock:
            return super().renew(lease_id, holder, ttl_s)

    def release(self, lease_id: str, holder: Holder) -> bool:
        """See ``Ledger``."""
        with self.lock:
            return super().release(lease_id, holder)

    def times_held(self, lease_id: str, holder: Holder) -> int:
        """See ``Ledger``."""
        with self.lock:
            return super().times_held(lease_id, holder)

    def leave(self, holder: Holder) -> None:
        """See ``Ledger``."""
        with self.lock:
            super().leave(holder)

    def expire(self) -> None:
        """See ``Ledger``."""
        with self.lock:
            super().expire()

    def expires_in_s(self, lease: Lease, holder: Holder) -> float:
        """See ``Ledger``."""
        with self.lock:
            return super().expires_in_s(lease, holder)
