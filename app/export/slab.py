"""The slab as the exporter writes it, and the control page beside it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

from ..transport.control_page import ControlPageWriter, control_byte_size
from ..transport.memfd import SealedMemory
from ..transport.region import (
    DTYPE_BYTES,
    FORMAT_VERSION,
    RawHandle,
    RegionDescriptor,
    RegionDevice,
    slot_bytes_for,
)

if TYPE_CHECKING:
    import torch


class Memory(Protocol):
    """Where the rows lie."""

    raw_handle: RawHandle | None
    device: RegionDevice
    descriptors: list[int]

    def view(self, byte_offset: int, byte_size: int) -> torch.Tensor:
        """A writable range as a flat uint8 tensor."""

    def read(self, byte_offset: int, byte_size: int) -> bytes:
        """A copy of a range; blocks for the device, where there is one."""


class HostMemory:
    """A sealed memfd."""

    raw_handle: RawHandle | None = None
    device = RegionDevice(uuid=None, ordinal=0)

    def __init__(self, byte_size: int) -> None:
        import torch  # noqa: PLC0415 - loaded by the time a target is

        self._memory = SealedMemory("slab", byte_size)
        self._bytes = torch.frombuffer(self._memory.buffer, dtype=torch.uint8)
        self.descriptors = [self._memory.read_only_fd]

    def view(self, byte_offset: int, byte_size: int) -> torch.Tensor:
        """See ``Memory``."""
        return self._bytes[byte_offset : byte_offset + byte_size]

    def read(self, byte_offset: int, byte_size: int) -> bytes:
        """See ``Memory``."""
        return self._memory.buffer[byte_offset : byte_offset + byte_size]


class DeviceMemory:
    """One CUDA allocation outside PyTorch's allocator."""

    def __init__(self, byte_size: int, ordinal: int) -> None:
        from ..transport.cuda_ipc import CudaSlab  # noqa: PLC0415 - only where there is a GPU

        self._slab = CudaSlab(byte_size, ordinal)
        self.raw_handle: RawHandle | None = self._slab.raw_handle
        self.device = self._slab.device
        self.descriptors: list[int] = []

    def view(self, byte_offset: int, byte_size: int) -> torch.Tensor:
        """See ``Memory``."""
        return self._slab.view(byte_offset, byte_size)

    def read(self, byte_offset: int, byte_size: int) -> bytes:
        """See ``Memory``."""
        return bytes(self._slab.view(byte_offset, byte_size).cpu().numpy().data)


class Slab:
    """Slots for rows, made before a target's weights are read.

    Args:
        slots: number of slots.
        rows_per_slot: rows of each.
        width: elements of a row.
        dtype: dtype of the rows, e.g. ``bfloat16``.
        device: ``cpu`` or ``cuda:N``.
        epoch: of this start, 128 random bits in hexadecimal.

    Attributes:
        region: how readers map it.
        page: the control page.
        descriptors: what ``describe`` passes: control page, and the slab where it is a memfd.

    Raises:
        MemoryError: there is not enough; the sentence has the numbers.
        UnsupportedTransportError: the device's memory cannot be shared.
    """

    def __init__(
        self, *, slots: int, rows_per_slot: int, width: int, dtype: str, device: str, epoch: str
    ) -> None:
        import torch  # noqa: PLC0415 - loaded by the time a target is

        row_bytes = width * DTYPE_BYTES[dtype]
        slot_bytes = slot_bytes_for(rows_per_slot, row_bytes)
        byte_size = slots * slot_bytes
        self._memory = _allocate(device, byte_size)
        self._row_bytes = row_bytes
        self._shape_dtype = getattr(torch, dtype)
        self._width = width
        control_bytes = control_byte_size(slots)
        self._control = SealedMemory("control", control_bytes)
        self.page = ControlPageWriter(memoryview(self._control.buffer), epoch=epoch, slots=slots)
        self.descriptors = [self._control.read_only_fd, *self._memory.descriptors]
        self.region = RegionDescriptor(
            format_version=FORMAT_VERSION,
            epoch=epoch,
            kind="memfd" if self._memory.raw_handle is None else "cuda_ipc",
            raw_handle=self._memory.raw_handle,
            byte_size=byte_size,
            base_offset=0,
            device=self._memory.device,
            slots=slots,
            slot_bytes=slot_bytes,
            rows_per_slot=rows_per_slot,
            row_bytes=row_bytes,
            dtype=dtype,
            width=width,
            control_byte_size=control_bytes,
            exporter_pid=os.getpid(),
        )

    def byte_offset(self, slot: int, row_start: int) -> int:
        """Where a row of a slot begins, from the region's ``base_offset``."""
        return slot * self.region.slot_bytes + row_start * self._row_bytes

    def rows(self, slot: int, row_start: int, num_tokens: int) -> torch.Tensor:
        """Rows as a writable tensor ``[num_tokens, width]`` of the target's dtype, on its device."""
        flat = self._memory.view(self.byte_offset(slot, row_start), num_tokens * self._row_bytes)
        return flat.view(self._shape_dtype).view(num_tokens, self._width)

    def read(self, byte_offset: int, byte_size: int) -> bytes:
        """A copy of a range; blocks for the device, where there is one."""
        return self._memory.read(byte_offset, byte_size)


def _allocate(device: str, byte_size: int) -> Memory:
    if device == "cpu":
        return HostMemory(byte_size)
    return DeviceMemory(byte_size, int(device.partition(":")[2] or 0))
