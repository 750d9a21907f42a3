"""Frames: a 4-byte little-endian length, then that many bytes of msgpack (contract, section 3)."""

from __future__ import annotations

from collections.abc import Generator

from .errors import FrameError

LENGTH_BYTES = 4
MAX_FRAME_BYTES = 16 << 20


def frame(payload: bytes) -> bytes:
    """One frame around ``payload``; ``FrameError`` above 16 MiB."""
    if len(payload) > MAX_FRAME_BYTES:
        raise FrameError(f"a message of {len(payload)} bytes is over the limit of {MAX_FRAME_BYTES}")
    return len(payload).to_bytes(LENGTH_BYTES, "little") + payload


class FrameDecoder:
    """Cuts a byte stream into payloads. Holds at most one unfinished frame.

    The length is checked before anything is kept, so a peer cannot make this side allocate more than 16 MiB and the
    chunk it has just received.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def pending_bytes(self) -> int:
        """Bytes of the unfinished frame."""
        return len(self._buffer)

    def feed(self, chunk: bytes | memoryview) -> Generator[bytes]:
        """Yields every payload that ``chunk`` completes; ``FrameError`` for a length that no frame may have.

        Who stops early closes the generator, and gets the rest with the next call.
        """
        buffer = self._buffer
        buffer += chunk
        start = 0
        try:
            while len(buffer) - start >= LENGTH_BYTES:
                length = int.from_bytes(buffer[start : start + LENGTH_BYTES], "little")
                if length > MAX_FRAME_BYTES:
                    raise FrameError(f"a frame of {length} bytes is over the limit of {MAX_FRAME_BYTES}")
                end = start + LENGTH_BYTES + length
                if len(buffer) < end:
                    break
                with memoryview(buffer) as view:  # a slice of the bytearray itself would be one more copy
                    payload = view[start + LENGTH_BYTES : end].tobytes()
                start = end
                yield payload
        finally:
            del buffer[:start]
