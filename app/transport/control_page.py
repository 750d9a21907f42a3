"""The control page: per slot one aligned 64-bit seqlock word that the worker writes and readers only look at.

Layout, all words unsigned 64-bit little-endian: a 64-byte header (magic, version, two words of epoch, number of slots,
bytes per entry, two reserved), then 64 bytes per slot (sequence, step, rows, five reserved).

Words are read and stored through ``memoryview.cast("Q")``: one aligned 8-byte access, which does not tear, whereas
``struct.pack_into`` on shared memory does.
"""

from __future__ import annotations

import mmap

MAGIC = int.from_bytes(b"DRAFTPRT", "little")
VERSION = 1
HEADER_BYTES = 64
ENTRY_BYTES = 64
_WORDS = ENTRY_BYTES // 8
_SEQUENCE, _STEP, _ROWS = 0, 1, 2


def control_byte_size(slots: int) -> int:
    """Bytes of a page for ``slots`` slots, rounded up to whole memory pages."""
    return -(-(HEADER_BYTES + slots * ENTRY_BYTES) // mmap.PAGESIZE) * mmap.PAGESIZE


def _at(slot: int) -> int:
    return HEADER_BYTES // 8 + slot * _WORDS


class ControlPageWriter:
    """The worker's side. One writer only; it never reads the page back (its truth is private memory)."""

    def __init__(self, buffer: memoryview, *, epoch: str, slots: int) -> None:
        self._words = buffer.cast("B").cast("Q")
        epoch_bytes = bytes.fromhex(epoch)
        self._words[2] = int.from_bytes(epoch_bytes[:8], "little")
        self._words[3] = int.from_bytes(epoch_bytes[8:], "little")
        self._words[4] = slots
        self._words[5] = ENTRY_BYTES
        self._words[1] = VERSION
        self._words[0] = MAGIC  # last: a page without its magic is not yet one

    def set_sequence(self, slot: int, sequence: int) -> None:
        """Stores a slot's seqlock word: even when its rows are stable, odd while they are being overwritten."""
        self._words[_at(slot) + _SEQUENCE] = sequence

    def set_step(self, slot: int, *, step: int, rows: int) -> None:
        """Notes the step that last wrote to the slot and how many rows the slot holds."""
        at = _at(slot)
        self._words[at + _STEP] = step
        self._words[at + _ROWS] = rows

    def close(self) -> None:
        """Lets go of the mapping."""
        self._words.release()


class ControlPageReader:
    """A reader's side, over a read-only mapping.

    Raises:
        ValueError: the bytes are no control page of this version, or shorter than their own slot count says.
    """

    def __init__(self, buffer: memoryview) -> None:
        if len(buffer) < HEADER_BYTES or len(buffer) % 8:
            raise ValueError("the control page is too short")
        self._words = buffer.cast("B").cast("Q")
        magic, version, slots, entry_bytes = (self._words[i] for i in (0, 1, 4, 5))
        if magic != MAGIC or version != VERSION or entry_bytes != ENTRY_BYTES:
            raise ValueError("not a control page of this version")
        if HEADER_BYTES + slots * ENTRY_BYTES > len(buffer):
            raise ValueError("the control page is shorter than its slots")
        self.slots = slots

    @property
    def epoch(self) -> str:
        """The worker's epoch, 32 hexadecimal digits."""
        low, high = self._words[2], self._words[3]
        return (low.to_bytes(8, "little") + high.to_bytes(8, "little")).hex()

    def sequence(self, slot: int) -> int:
        """The slot's seqlock word."""
        return self._words[_at(slot) + _SEQUENCE]

    def step(self, slot: int) -> int:
        """The step that last wrote to the slot."""
        return self._words[_at(slot) + _STEP]

    def rows(self, slot: int) -> int:
        """Rows the slot holds since it was last recycled."""
        return self._words[_at(slot) + _ROWS]

    def close(self) -> None:
        """Lets go of the mapping."""
        self._words.release()
