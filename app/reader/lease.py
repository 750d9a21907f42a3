"""A lease: the rows of one prompt, in the slab, for a while."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Self

from ..transport import messages as wire
from ..transport.errors import ConnectionLostError, RemoteError, StaleLeaseError
from .deadline import Deadline
from .mapping import NUMPY_DTYPES, MemfdMapping

if TYPE_CHECKING:
    import numpy as np
    import torch

    from .region import Region

_RELEASE_TIMEOUT_S = 5.0
_GONE = {"lease_expired", "lease_not_found"}


class Lease:
    """Rows that this region's connection holds. Leaving the context releases it.

    Look at the rows, finish what you compute from them, then call ``check``: only if that passes were they this
    prompt's rows all the while. Tensors stay valid *memory* in any case, after a release too; what ends is the
    promise that nobody writes over the rows.

    Attributes:
        descriptor: the worker's own words.
        num_tokens: rows; 0 is possible.
        shape: ``(num_tokens, width)``.
        dtype: PyTorch's name of the element type, e.g. ``bfloat16``.
        token_ids: the prompt's ids, one per row.
        deadline: when it runs out, on this process's monotonic clock, counted from before it was asked for.
        released: whether this holder released it.
    """

    def __init__(self, region: Region, descriptor: wire.LeaseDescriptor, deadline: float) -> None:
        self._region = region
        self.deadline = deadline
        self.released = False
        self.descriptor = descriptor
        self.num_tokens = descriptor.num_tokens
        self.shape = (descriptor.shape[0], descriptor.shape[1])
        self.dtype = descriptor.dtype
        self.token_ids = descriptor.token_ids

    @property
    def lease_id(self) -> str:
        """What others pass to their ``region.open``."""
        return self.descriptor.lease_id

    def tensor(self, *, copy: bool = False) -> torch.Tensor:
        """The rows as a tensor ``[num_tokens, width]`` of ``dtype`` on the exporter's device.

        Without ``copy`` it lies on the slab. In host memory the mapping is copy-on-write, a new one for each call: an
        in-place operation stays in this tensor. On a GPU there is no such protection: do not write.

        Args:
            copy: give a private tensor instead, checked after copying: no later ``check`` is needed.

        Raises:
            StaleLeaseError: the rows may have changed, or the lease or region was released or closed.
        """
        import torch  # noqa: PLC0415 - only those who ask for a tensor need PyTorch

        self._verify()
        flat = self._region.mapping.tensor(self.descriptor.byte_offset, self.descriptor.byte_size)
        rows = flat.view(getattr(torch, self.dtype)).view(self.shape)
        if copy:
            rows = rows.clone()
            self.check()
        return rows

    def numpy(self) -> np.ndarray:
        """The rows as a read-only array ``[num_tokens, width]`` on the slab, in host memory only.

        Raises:
            StaleLeaseError: as for ``tensor``.
            TypeError: NumPy has no such dtype, or cannot see the device; the message says what to do.
        """
        if self.dtype not in NUMPY_DTYPES:
            raise TypeError(f"NumPy has no {self.dtype}: use lease.tensor(), then .float().numpy()")
        mapping = self._region.mapping
        if not isinstance(mapping, MemfdMapping):
            raise TypeError("these rows are on a GPU: use lease.tensor(), then .cpu().numpy()")
        self._verify()
        flat = mapping.array(self.descriptor.byte_offset, self.descriptor.byte_size)
        return flat.view(self.dtype).reshape(self.shape)

    def check(self, stream: Any = None) -> None:
        """Waits for what was computed from the rows, then makes sure that they had not changed.

        Args:
            stream: the ``torch.cuda.Stream`` that used the tensor; the current one for ``None``. Several streams used
                it: call once for each.

        Raises:
            StaleLeaseError: worker gone, slot recycled, lease run out or released, region closed: discard the results.
        """
        self._ensure_held()
        self._region.mapping.synchronize(stream)
        self._verify()

    def renew(self, lease_ttl_s: float = 30.0) -> None:
        """Lets the lease run ``lease_ttl_s`` seconds (1 to 600) from now.

        Raises:
            StaleLeaseError: it had ended before.
            RemoteError: the worker refuses the duration.
        """
        self._ensure_held()
        request = wire.Renew(id=0, lease_id=self.lease_id, lease_ttl_s=lease_ttl_s)
        sent_at = time.monotonic()
        try:
            reply = self._region.connection.call(request, wire.LeaseReply, Deadline(self._region.timeout_s))
        except ConnectionLostError as error:
            raise StaleLeaseError(str(error)) from error
        except RemoteError as error:
            if error.code in _GONE:
                raise StaleLeaseError(f"the lease ended before it was renewed ({error.code})") from error
            raise
        self.deadline = sent_at + reply.lease.expires_in_s

    def release(self) -> None:
        """Ends this holder's lease after waiting for the device, which may still read the rows; idempotent.

        It raises nothing when the worker is gone or slow: the hold then ends with the connection or its deadline.
        """
        if self.released or self._region.why_unusable() is not None:
            self.released = True
            return
        self._region.mapping.synchronize_device()
        self.released = True
        request = wire.Release(id=0, lease_id=self.lease_id)
        try:
            self._region.connection.call(request, wire.ReleaseReply, Deadline(_RELEASE_TIMEOUT_S))
        except (ConnectionLostError, TimeoutError):
            return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<Lease {self.lease_id} slot {self.descriptor.slot} {list(self.shape)} {self.dtype}>"

    def _ensure_held(self) -> None:
        if self.released:
            raise StaleLeaseError("this lease was released")
        reason = self._region.why_unusable()
        if reason is not None:
            raise StaleLeaseError(reason)

    def _verify(self) -> None:
        """The rule of a valid read: open socket, same epoch, same even sequence, deadline ahead, open socket."""
        self._ensure_held()
        slot, sequence = self.descriptor.slot, self.descriptor.sequence
        page = self._region.control_page
        if page.epoch != self._region.descriptor.epoch:
            raise StaleLeaseError("the worker started anew; attach again")
        if sequence % 2 or page.sequence(slot) != sequence:
            raise StaleLeaseError("the slot was recycled; its rows belong to another prompt")
        if time.monotonic() >= self.deadline:
            raise StaleLeaseError("the lease ran out; renew leases in time, or ask for a longer one")
        self._ensure_held()
