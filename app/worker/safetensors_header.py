"""The header of a safetensors file: names, dtypes and shapes, checked against the file's size.

The format: 8 bytes little-endian header length, a JSON header, then the tensors' bytes
(https://huggingface.co/docs/safetensors). Reading the header finds a truncated download before anything is loaded.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

from .target_error import TargetError

MAX_HEADER_BYTES = 100_000_000
_FLOAT_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of a shard. ``dtype`` is safetensors' name (``BF16``), ``byte_size`` its bytes in the file."""

    dtype: str
    num_elements: int
    byte_size: int


@dataclass(frozen=True)
class ShardHeader:
    """What one shard holds. ``data_bytes`` is the size of all its tensors."""

    path: Path
    tensors: dict[str, TensorEntry]
    data_bytes: int


def read_shard_header(path: Path, shown: str) -> ShardHeader:
    """Reads and checks a shard's header.

    Raises:
        TargetError: ``target_invalid``: no safetensors file, or its size is not what the header says.
    """
    try:
        with path.open("rb") as file:
            header, header_bytes = _read_header(file)
        tensors = {name: _entry(entry) for name, entry in header.items() if name != "__metadata__"}
        data_bytes = max(
            (entry["data_offsets"][1] for n, entry in header.items() if n != "__metadata__"), default=0
        )
        file_bytes = path.stat().st_size
    except (OSError, ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise TargetError(
            "target_invalid", f"{path.name} of {shown} is no readable safetensors file; copy it anew."
        ) from error
    expected = 8 + header_bytes + data_bytes
    if file_bytes != expected:
        raise TargetError(
            "target_invalid",
            f"{path.name} of {shown} has {file_bytes} bytes and should have {expected}; copy it anew.",
        )
    return ShardHeader(path=path, tensors=tensors, data_bytes=data_bytes)


def _read_header(file: BinaryIO) -> tuple[dict[str, Any], int]:
    length = int.from_bytes(file.read(8), "little")
    if not 2 <= length <= MAX_HEADER_BYTES:
        raise ValueError("no header")
    text = file.read(length)
    if len(text) != length:
        raise ValueError("header cut short")
    header = json.loads(text)
    if not isinstance(header, dict):
        raise TypeError("header is no object")
    return header, length


def _entry(entry: dict[str, Any]) -> TensorEntry:
    start, end = entry["data_offsets"]
    return TensorEntry(dtype=str(entry["dtype"]), num_elements=prod(entry["shape"]), byte_size=end - start)


def loaded_bytes(headers: tuple[ShardHeader, ...], element_bytes: int) -> int:
    """Memory of the tensors when floating-point ones of 16 bits and more are held with ``element_bytes`` each."""
    return sum(
        entry.num_elements * element_bytes if entry.dtype in _FLOAT_DTYPES else entry.byte_size
        for header in headers
        for entry in header.tensors.values()
    )


def common_float_dtype(headers: tuple[ShardHeader, ...]) -> str | None:
    """The floating-point dtype that most elements are stored in, ``None`` where there is none."""
    elements: dict[str, int] = {}
    for header in headers:
        for entry in header.tensors.values():
            if entry.dtype in _FLOAT_DTYPES:
                name = _FLOAT_DTYPES[entry.dtype]
                elements[name] = elements.get(name, 0) + entry.num_elements
    return max(elements, key=lambda name: elements[name]) if elements else None
