"""The slab as this process sees it: one class per transport."""

from __future__ import annotations

import ctypes
import os
import threading
from typing import TYPE_CHECKING, Any, Protocol

from ..transport.errors import StaleLeaseError, UnsupportedTransportError
from ..transport.memfd import map_private
from ..transport.region import RegionDescriptor

if TYPE_CHECKING:
    import numpy as np
    import torch

NUMPY_DTYPES = frozenset({"float64", "float32", "float16", "int64", "int32", "uint8"})


class Mapping(Protocol):
    """Gives out tensors over byte ranges of the slab; each keeps alive what it lies on."""

    def tensor(self, byte_offset: int, byte_size: int) -> torch.Tensor:
        """The bytes as a flat uint8 tensor on the exporter's device, without a copy."""

    def synchronize(self, stream: Any) -> None:
        """Waits for the work queued so far: on ``stream``, or on the current one for ``None``."""

    def synchronize_device(self) -> None:
        """Waits for all work queued so far, on whatever stream."""

    def close(self) -> None:
        """Gives out no more; what was given out stays."""


class MemfdMapping:
    """A slab in host memory. Every tensor has a copy-on-write mapping of its own.

    So an in-place operation, which PyTorch cannot forbid, changes this tensor's private pages and neither the slab nor
    another tensor, and the mapping goes with its last view. Pages that were not written still show the slab.
    """

    def __init__(self, slab_fd: int, region: RegionDescriptor) -> None:
        self._fd = os.dup(slab_fd)
        self._base_offset = region.base_offset
        self._closing = (
            threading.Lock()
        )  # lest another thread map a number that was closed and given out anew

    def tensor(self, byte_offset: int, byte_size: int) -> torch.Tensor:
        """See ``Mapping``."""
        import torch  # noqa: PLC0415 - only those who ask for a tensor need PyTorch

        if not byte_size:
            return torch.empty(0, dtype=torch.uint8)
        return torch.frombuffer(self._mapped(byte_offset, byte_size), dtype=torch.uint8)

    def array(self, byte_offset: int, byte_size: int) -> np.ndarray:
        """The bytes as a flat read-only uint8 array, without a copy."""
        import numpy as np  # noqa: PLC0415 - only those who ask for an array need NumPy

        array: np.ndarray = np.frombuffer(self._mapped(byte_offset, byte_size), dtype=np.uint8)
        array.flags.writeable = False
        return array

    def synchronize(self, stream: Any) -> None:
        """Nothing is queued on a CPU."""

    def synchronize_device(self) -> None:
        """Nothing is queued on a CPU."""

    def close(self) -> None:
        """Closes the descriptor; tensors stay."""
        with self._closing:
            fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _mapped(self, byte_offset: int, byte_size: int) -> ctypes.Array[ctypes.c_ubyte]:
        with self._closing:
            if self._fd < 0:
                raise StaleLeaseError("the region was closed; attach again")
            return map_private(self._fd, self._base_offset + byte_offset, byte_size)


class CudaMapping:
    """A slab on a GPU, opened once per process and shared by all its tensors."""

    def __init__(self, region: RegionDescriptor) -> None:
        from ..transport.cuda_ipc import open_slab  # noqa: PLC0415 - imports PyTorch

        self._slab = open_slab(region)
        self._base_offset = region.base_offset

    def tensor(self, byte_offset: int, byte_size: int) -> torch.Tensor:
        """See ``Mapping``."""
        return self._slab.view(self._base_offset + byte_offset, byte_size)

    def synchronize(self, stream: Any) -> None:
        """See ``Mapping``."""
        self._slab.synchronize(stream)

    def synchronize_device(self) -> None:
        """See ``Mapping``."""
        self._slab.synchronize_device()

    def close(self) -> None:
        """Nothing to close: the mapping goes with its last tensor."""


def mapping_of(region: RegionDescriptor, slab_fd: int | None) -> Mapping:
    """Maps the slab; ``UnsupportedTransportError`` where this process cannot."""
    if region.kind == "memfd" and slab_fd is not None:
        return MemfdMapping(slab_fd, region)
    if region.kind == "cuda_ipc":
        return CudaMapping(region)
    raise UnsupportedTransportError(f"this reader does not know slabs of kind {region.kind}")
