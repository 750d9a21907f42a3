"""A connected unix socket on an asyncio loop: frames in, frames out, descriptors beside them.

asyncio's own streams drop ``SCM_RIGHTS``, hence this class on ``add_reader``. Both ends use it: the worker for each of
its clients, the API process for its connection to the worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections import deque
from collections.abc import Callable

from .descriptors import ANCILLARY_BYTES, MAX_DESCRIPTORS, ancillary_for, close_all, descriptors_in
from .errors import FrameError
from .frames import FrameDecoder, frame

RECEIVE_BYTES = 256 << 10
PAUSE_ABOVE_BYTES = 1 << 20
RESUME_BELOW_BYTES = 256 << 10
MAX_WAITING_DESCRIPTORS = 4 * MAX_DESCRIPTORS
FRAMES_PER_TURN = 128


class FrameChannel:
    """Calls ``on_frame(payload)`` for every frame and ``on_close(error)`` exactly once.

    With ``back_pressure``, nothing is read from the peer while more than 1 MiB waits to be sent to it: a client that
    asks and never reads cannot fill this process's memory, and costs nobody else anything. Only the worker's end does
    so; if both ends did, two peers with much to say would wait for each other for ever. Frames that have been read
    but not handed on wait as well, and a peer that sends many gets its turns between the others'.

    Attributes:
        frame_begun_at: monotonic seconds since when the peer owes the rest of a frame, ``None`` when it owes nothing.
        closed: whether the connection is over.

    Args:
        sock: the connected socket; owned by the channel from here on.
        on_frame: gets each payload, on the loop.
        on_close: gets ``None`` at EOF, else the exception that ended the connection.
        accept_descriptors: keep received descriptors for ``take_descriptors``; otherwise the kernel drops them.
        back_pressure: stop reading while the peer does not.
    """

    def __init__(
        self,
        sock: socket.socket,
        on_frame: Callable[[bytes], None],
        on_close: Callable[[Exception | None], None],
        *,
        accept_descriptors: bool = False,
        back_pressure: bool = True,
    ) -> None:
        self._sock = sock
        self._sock.settimeout(0)
        self._on_frame = on_frame
        self._on_close = on_close
        self._ancillary_bytes = ANCILLARY_BYTES if accept_descriptors else 0
        self._descriptors: list[int] = []
        self._decoder = FrameDecoder()
        self._out: deque[tuple[memoryview, list[int]]] = deque()
        self._out_bytes = 0
        self._back_pressure = back_pressure
        self._paused = False  # nothing is handed on: the peer has not read enough
        self._reading = True  # the loop watches the socket for input
        self._resuming: asyncio.Handle | None = None
        self._drained = asyncio.Event()
        self._drained.set()
        self.frame_begun_at: float | None = None
        self.closed = False
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock, self._readable)

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the peer has not taken yet."""
        return self._out_bytes

    async def drained(self) -> None:
        """Waits until the peer has read enough, or the channel is closed."""
        await self._drained.wait()

    def take_descriptors(self, count: int | None = None) -> list[int]:
        """Hands over the first ``count`` of the descriptors received so far, or all of them.

        They arrive with the first byte of their frame, so those of the next frame may be here already.
        """
        taken = self._descriptors[:count]
        del self._descriptors[: len(taken)]
        return taken

    def send(self, payload: bytes, descriptors: list[int] | None = None) -> None:
        """Queues one frame; does nothing once closed. ``descriptors`` are duplicated by the kernel when sent."""
        if self.closed:
            return
        data = memoryview(frame(payload))
        self._out.append((data, descriptors or []))
        self._out_bytes += len(data)
        if len(self._out) == 1:
            self._writable()
        self._apply_back_pressure()

    def close(self, error: Exception | None = None) -> None:
        """Closes the socket and reports it; idempotent."""
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        if self._resuming is not None:
            self._resuming.cancel()
        self._drained.set()
        self._sock.close()
        self._out.clear()
        self._out_bytes = 0
        close_all(self.take_descriptors())
        self._on_close(error)

    def _readable(self) -> None:
        try:
            chunk, ancillary, flags, _peer = self._sock.recvmsg(
                RECEIVE_BYTES, self._ancillary_bytes, socket.MSG_CMSG_CLOEXEC
            )
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.close(error)
            return
        self._descriptors.extend(descriptors_in(ancillary))
        if self._descriptors_lost(flags):
            self.close(FrameError("descriptors were lost: too many were sent, or this process has none left"))
            return
        if not chunk:
            self.close()
            return
        self._hand_on(chunk)

    def _hand_on(self, chunk: bytes) -> None:
        """Hands on the frames that are complete, as many as are due, then reads on or comes back for the rest."""
        left = FRAMES_PER_TURN
        try:
            with contextlib.closing(self._decoder.feed(chunk)) as payloads:
                for payload in payloads:
                    self._on_frame(payload)
                    left -= 1
                    if self.closed or self._paused or not left:
                        break
        except FrameError as error:
            self.close(error)
        if self.closed:
            return
        self._note_unfinished_frame(finished_one=left < FRAMES_PER_TURN)
        self._watch_input(wanted=left > 0 and not self._paused)
        if not left and not self._paused:
            self._resume_soon()

    def _note_unfinished_frame(self, *, finished_one: bool) -> None:
        """For those who limit how long a peer may take over a frame; what waits for this side does not count."""
        unfinished = self._decoder.pending_bytes > 0 and not self._paused
        if not unfinished:
            self.frame_begun_at = None
        elif finished_one or self.frame_begun_at is None:
            self.frame_begun_at = time.monotonic()

    def _resume_soon(self) -> None:
        if self._resuming is None:
            self._resuming = self._loop.call_soon(self._resume)

    def _resume(self) -> None:
        self._resuming = None
        if not self.closed and not self._paused:
            self._hand_on(b"")

    def _watch_input(self, *, wanted: bool) -> None:
        if wanted != self._reading:
            self._reading = wanted
            if wanted:
                self._loop.add_reader(self._sock, self._readable)
            else:
                self._loop.remove_reader(self._sock)

    def _descriptors_lost(self, flags: int) -> bool:
        truncated = bool(flags & socket.MSG_CTRUNC) and self._ancillary_bytes > 0
        return truncated or len(self._descriptors) > MAX_WAITING_DESCRIPTORS

    def _writable(self) -> None:
        while self._out:
            data, descriptors = self._out[0]
            try:
                sent = self._sock.sendmsg([data], ancillary_for(descriptors))
            except (BlockingIOError, InterruptedError):
                self._loop.add_writer(self._sock, self._writable)
                return
            except OSError as error:
                self.close(error)
                return
            self._out_bytes -= sent
            if sent == len(data):
                self._out.popleft()
            else:
                self._out[0] = (data[sent:], [])
        self._loop.remove_writer(self._sock)
        self._apply_back_pressure()

    def _apply_back_pressure(self) -> None:
        if self.closed or not self._back_pressure:
            return
        if not self._paused and self._out_bytes > PAUSE_ABOVE_BYTES:
            self._paused = True
            self._drained.clear()
            self.frame_begun_at = None
            self._watch_input(wanted=False)
        elif self._paused and self._out_bytes < RESUME_BELOW_BYTES:
            self._paused = False
            self._drained.set()
            self._resume_soon()  # not at once: this may be in the midst of handing on a frame
