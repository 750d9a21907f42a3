"""The region descriptor: how to map the slab and read a row from it (contract, section 3)."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

FORMAT_VERSION = 1
HUGE_PAGE_BYTES = 2 << 20
CUDA_IPC_HANDLE_BYTES = 64

Size: TypeAlias = Annotated[int, Meta(ge=0, le=2**62)]

DTYPE_BYTES = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int64": 8,
    "int32": 4,
    "uint8": 1,
}


class RawHandle(Struct, frozen=True):
    """Bytes of a ``cudaIpcMemHandle_t`` in base64 (Triton Inference Server's name for the same thing)."""

    b64: str

    @classmethod
    def of(cls, handle: bytes) -> RawHandle:
        """Wraps the 64 bytes of a handle; ``ValueError`` for any other length."""
        if len(handle) != CUDA_IPC_HANDLE_BYTES:
            raise ValueError(f"a CUDA IPC memory handle has {CUDA_IPC_HANDLE_BYTES} bytes, not {len(handle)}")
        return cls(b64=base64.b64encode(handle).decode())

    def to_bytes(self) -> bytes:
        """The 64 bytes; ``ValueError`` when the text is no base64 or of another length."""
        try:
            handle = base64.b64decode(self.b64, validate=True)
        except binascii.Error as error:
            raise ValueError("raw_handle.b64 is not base64") from error
        if len(handle) != CUDA_IPC_HANDLE_BYTES:
            raise ValueError(f"a CUDA IPC memory handle has {CUDA_IPC_HANDLE_BYTES} bytes, not {len(handle)}")
        return handle


class RegionDevice(Struct, frozen=True):
    """The exporter's device. Readers match ``uuid``; ``ordinal`` is the exporter's own count and only informs."""

    uuid: str | None
    ordinal: int


class RegionDescriptor(Struct, frozen=True):
    """Where the slab is and how its rows lie.

    ``slots`` x ``slot_bytes`` <= ``byte_size``; ``slot_bytes`` is a multiple of 2 MiB; a slot holds
    ``rows_per_slot`` rows of ``row_bytes`` = ``width`` x size of ``dtype``.
    """

    format_version: int
    epoch: str
    kind: Literal["cuda_ipc", "memfd"]
    raw_handle: RawHandle | None
    byte_size: Size
    base_offset: Size
    device: RegionDevice
    slots: Size
    slot_bytes: Size
    rows_per_slot: Size
    row_bytes: Size
    dtype: str
    width: Size
    control_byte_size: Size
    exporter_pid: int

    def validate(self) -> None:
        """Refuses a descriptor whose numbers contradict one another (``ValueError`` says which)."""
        if self.format_version != FORMAT_VERSION:
            raise ValueError(
                f"region format {self.format_version} is not {FORMAT_VERSION}: update the reader"
            )
        if not re.fullmatch("[0-9a-f]{32}", self.epoch):
            raise ValueError("the epoch is not 32 hexadecimal digits")
        if self.dtype not in DTYPE_BYTES:
            raise ValueError(f"region dtype {self.dtype!r} is unknown to this reader")
        if self.base_offset % DTYPE_BYTES[self.dtype]:
            raise ValueError("base_offset is not aligned to the dtype")
        if min(self.width, self.rows_per_slot, self.slots) < 1:
            raise ValueError("width, rows_per_slot and slots must be at least 1")
        if self.row_bytes != self.width * DTYPE_BYTES[self.dtype]:
            raise ValueError("row_bytes is not width x size of dtype")
        if self.rows_per_slot * self.row_bytes > self.slot_bytes:
            raise ValueError("a slot is smaller than its rows")
        if self.base_offset + self.slots * self.slot_bytes > self.byte_size:
            raise ValueError("the slots reach beyond byte_size")
        if (self.kind == "cuda_ipc") != (self.raw_handle is not None):
            raise ValueError("exactly the kind cuda_ipc has a raw_handle")

    def check_rows(self, *, slot: int, byte_offset: int, byte_size: int, num_tokens: int) -> None:
        """Refuses rows that do not lie inside ``slot`` (``ValueError``): the answer of a confused or hostile peer."""
        start = slot * self.slot_bytes
        inside = 0 <= slot < self.slots and start <= byte_offset and num_tokens >= 0
        if not inside or byte_offset + byte_size > start + self.rows_per_slot * self.row_bytes:
            raise ValueError("the lease's rows lie outside its slot")
        if byte_size != num_tokens * self.row_bytes:
            raise ValueError("the lease's byte_size is not num_tokens x row_bytes")
        if (byte_offset - start) % self.row_bytes:
            raise ValueError("the lease's rows do not begin where a row begins")


def slot_bytes_for(rows_per_slot: int, row_bytes: int) -> int:
    """Bytes of one slot: its rows, rounded up to whole 2 MiB pages."""
    return -(-rows_per_slot * row_bytes // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
