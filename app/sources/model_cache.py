"""Loaded models in memory, bounded by number and by bytes, the least recently used going first."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeAlias

from msgspec import Struct

from .errors import SourceError
from .loaded import LoadedModel
from .local import Stamp

Key: TypeAlias = tuple[str, str | None]


class Entry(Struct):
    """One answer.

    Attributes:
        outcome: the model, or the hub's refusal.
        fresh_until: seconds on the monotonic clock until which nothing need be asked again.
        size_bytes: what it counts for.
        stamp: of a directory's files when they were read.
    """

    outcome: LoadedModel | SourceError
    fresh_until: float
    size_bytes: int = 0
    stamp: Stamp | None = None


class ModelCache:
    """Not thread-safe: its owner calls it from one thread at a time."""

    def __init__(self, max_entries: int, max_bytes: int) -> None:
        self._entries: OrderedDict[Key, Entry] = OrderedDict()
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> Entry | None:
        """The entry, fresh or not."""
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def put(self, key: Key, entry: Entry) -> None:
        """Keep an entry; one that is larger than the whole cache is not kept."""
        self.drop(key)
        if entry.size_bytes > self._max_bytes or self._max_entries < 1:
            return
        self._entries[key] = entry
        self._bytes += entry.size_bytes
        while len(self._entries) > self._max_entries or self._bytes > self._max_bytes:
            self._bytes -= self._entries.popitem(last=False)[1].size_bytes

    def drop(self, key: Key) -> None:
        """Forget an entry, if it is there."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._bytes -= entry.size_bytes
