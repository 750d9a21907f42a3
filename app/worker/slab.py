"""The slab as the worker writes it, and the control page beside it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

from ..transport.control_page import ControlPageWriter, control_byte_size
from ..transport.memfd import SealedMemory
from ..transport.region import (
    FORMAT_VERSION,
    RawHandle,
    RegionDescriptor,
    RegionDevice,
    slot_bytes_for,
)
from .device import free_bytes
from .target import TargetPlan
from .target_error import TargetError

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
    """Slots for the rows of a target, made before its weights are read.

    Attributes:
        region: how readers map it.
        page: the control page.
        descriptors: what ``describe`` passes: control page, and the slab where it is a memfd.

    Raises:
        TargetError: ``out_of_memory``: slab and weights together do not fit; both numbers are in the sentence.
    """

    def __init__(self, plan: TargetPlan, slots: int, epoch: str) -> None:
        import torch  # noqa: PLC0415 - loaded by the time a target is

        rows = plan.description.max_num_batched_tokens
        slot_bytes = slot_bytes_for(rows, plan.row_bytes)
        byte_size = slots * slot_bytes
        self._memory = _allocate(plan, byte_size)
        self._row_bytes = plan.row_bytes
        self._shape_dtype = getattr(torch, plan.dtype)
        self._width = plan.width
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
            rows_per_slot=rows,
            row_bytes=plan.row_bytes,
            dtype=plan.dtype,
            width=plan.width,
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


def _allocate(plan: TargetPlan, byte_size: int) -> Memory:
    free = free_bytes(plan.device)
    if free is not None and byte_size + plan.weight_bytes > free:
        raise TargetError(
            "out_of_memory",
            f"The slab of {byte_size} bytes and the weights of {plan.weight_bytes} bytes do not fit into the "
            f"{free} bytes free on {plan.device}; lower SLOTS or MAX_NUM_BATCHED_TOKENS, or take a smaller target.",
        )
    try:
        if plan.device == "cpu":
            return HostMemory(byte_size)
        return DeviceMemory(byte_size, int(plan.device.partition(":")[2] or 0))
    except MemoryError as error:
        raise TargetError("out_of_memory", f"{error}; lower SLOTS or MAX_NUM_BATCHED_TOKENS.") from error
