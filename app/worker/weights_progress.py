"""Safetensors shards as transformers wants them, read on demand and counted byte by byte.

``pread`` instead of ``mmap``: a mapped weight is "loaded" before its pages are read, and a checkpoint that is
replaced under a running worker would kill it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any


class ByteCounter:
    """Adds up bytes that several threads read and tells a callback, which must be quick."""

    def __init__(self, total: int, callback: Callable[[int, int], None]) -> None:
        self._lock = threading.Lock()
        self._callback = callback
        self._read = 0
        self._total = total

    def add(self, count: int) -> None:
        """``count`` more bytes were read."""
        with self._lock:
            self._read = min(self._total, self._read + count)
            self._callback(self._read, self._total)

    def finish(self) -> None:
        """Nothing more will be read: what is left over (an unused head) was not needed."""
        with self._lock:
            self._read = self._total
            self._callback(self._total, self._total)


class CountedSlice:
    """A tensor of a shard that is read, and counted, when it is indexed; transformers' loader indexes with ``...``."""

    def __init__(self, tensor_slice: Any, counter: ByteCounter) -> None:
        self._slice = tensor_slice
        self._counter = counter

    def __getitem__(self, index: Any) -> Any:
        tensor = self._slice[index]
        self._counter.add(tensor.numel() * tensor.element_size())
        return tensor

    def get_shape(self) -> list[int]:
        """Shape in the file."""
        shape: list[int] = self._slice.get_shape()
        return shape

    def get_dtype(self) -> str:
        """Dtype in the file, as safetensors spells it."""
        dtype: str = self._slice.get_dtype()
        return dtype


def open_shards(paths: list[Path], counter: ByteCounter) -> dict[str, CountedSlice]:
    """All tensors of all shards, unread."""
    from safetensors import safe_open  # noqa: PLC0415 - brings torch in

    tensors = {}
    for path in paths:
        shard: Any = safe_open(path, framework="pt", device="cpu", backend="pread")
        # safe_open is no mapping: iterating over it is not iterating over its keys.
        for name in shard.keys():  # noqa: SIM118
            tensors[name] = CountedSlice(shard.get_slice(name), counter)
    return tensors
