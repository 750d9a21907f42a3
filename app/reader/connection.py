"""One connection to the worker, shared by any number of threads and needing none of its own.

Whoever waits for an answer reads the socket for all (one at a time); a thread whose answer somebody else read is woken.
So nothing runs in the background, nothing is read that nobody waits for, and a worker with events for an idle
reader simply finds the socket full.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TypeVar

import msgspec

from ..transport import messages as wire
from ..transport.descriptors import ANCILLARY_BYTES, close_all, descriptors_in
from ..transport.errors import ConnectionLostError, FrameError, RemoteError
from ..transport.frames import FrameDecoder, frame
from . import forks
from .deadline import Deadline

RECEIVE_BYTES = 256 << 10
_SHARED_WAIT_S = 0.05
_T = TypeVar("_T")
_AnyReply = TypeVar("_AnyReply", bound=wire.Reply)


class Connection:
    """Sends requests and waits for their replies; safe to use from several threads at once.

    A call that times out leaves the connection in order: what is half sent is sent on, a late reply is dropped by its
    id, and leases that it brings are released.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(0)
        self._sock = sock
        self._pid = os.getpid()
        self._ids = itertools.count(1)
        self._decoder = FrameDecoder()
        self._changed = threading.Condition()  # guards the attributes up to _lost
        self._reading = False
        self._waiting: set[int] = set()
        self._replies: dict[int, wire.Reply] = {}
        self._abandoned: dict[int, wire.Request] = {}
        self._events: dict[int, Callable[[wire.StepEvent], None]] = {}
        self._closed = False
        self._lost: str | None = None
        self._sending = threading.Lock()  # guards _unsent; the outbox is a deque and needs no lock
        self._outbox: deque[bytes] = deque()
        self._unsent = memoryview(b"")
        self._descriptors: list[int] | None = []
        self.quiet_at = time.monotonic()
        forks.remember(self)

    # -- state ---------------------------------------------------------------------------------------------------

    def why_unusable(self) -> str | None:
        """``None`` while the connection is sound, else why not, in a sentence. Asks the kernel, not the memory."""
        if self.is_forked():
            return "this region was attached before fork(); attach again in the child process"
        with self._changed:
            if self._lost is None and not self._closed:
                poller = select.poll()
                poller.register(self._sock, select.POLLRDHUP)  # POLLHUP and POLLERR are always reported
                if poller.poll(0):
                    self._lose("the worker closed the connection")
            return self._lost

    def is_forked(self) -> bool:
        """Whether this is a copy in a child process, whose locks a thread that was not copied may hold for ever."""
        return os.getpid() != self._pid

    def ensure_usable(self) -> None:
        """Raises ``ConnectionLostError`` unless the connection is sound."""
        reason = self.why_unusable()
        if reason is not None:
            raise ConnectionLostError(reason)

    def close(self) -> None:
        """Closes the socket, which ends all holds of this connection; idempotent."""
        if self.is_forked():
            return
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._lose("the region was closed; attach again")
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)  # wakes whoever reads
            if not self._reading:
                self._sock.close()
        self.refuse_descriptors()

    def forget_after_fork(self) -> None:
        """In the child: gives up the inherited socket, lest it keep the parent's holds alive."""
        self._sock.close()

    def refuse_descriptors(self) -> None:
        """From now on the kernel drops any descriptor the peer may send."""
        close_all(self.take_descriptors())
        self._descriptors = None

    def take_descriptors(self) -> list[int]:
        """Hands over the descriptors received so far."""
        taken, self._descriptors = self._descriptors or [], []
        return taken

    # -- calls ---------------------------------------------------------------------------------------------------

    def call(
        self,
        request: wire.Request,
        reply_type: type[_AnyReply],
        deadline: Deadline,
        on_step: Callable[[wire.StepEvent], None] | None = None,
    ) -> _AnyReply:
        """Sends ``request`` under a new id and waits for its reply.

        Args:
            request: what to send.
            reply_type: what answers it.
            deadline: until when to wait.
            on_step: for a ``subscribe``: called with each event, under the connection's lock, from whichever thread
                reads; it must not wait. Ended by ``unsubscribe``.

        Raises:
            RemoteError: the worker answered with an error frame.
            TimeoutError: nothing came by ``deadline``. A ``forward`` is then cancelled at the worker.
            ConnectionLostError: the connection is closed, lost, or older than a ``fork()`` of this process.
        """
        self.ensure_usable()
        request = msgspec.structs.replace(request, id=next(self._ids))
        payload = wire.encode(request)
        with self._changed:
            self._waiting.add(request.id)
            if on_step is not None:
                self._events[request.id] = on_step
        try:
            self._outbox.append(frame(payload))
            self._flush(deadline)
            self.run_until(lambda: request.id in self._replies, deadline)
        except BaseException:
            self._abandon(request)
            raise
        with self._changed:
            self._waiting.discard(request.id)
            reply = self._replies.pop(request.id)
        if isinstance(reply, wire.ErrorReply):
            raise RemoteError(reply.code, reply.detail, reply.retry_after_s, reply.field)
        if not isinstance(reply, reply_type):
            error = FrameError(f"the worker answered {type(request).__name__} with {type(reply).__name__}")
            self._fail(str(error))
            raise error
        return reply

    def post(self, request: wire.Request) -> None:
        """Sends a request whose reply nobody waits for, now if the socket takes it, else with the next call."""
        request = msgspec.structs.replace(request, id=next(self._ids))
        with self._changed:
            self._post(request)
        self._flush_now()

    def unsubscribe(self, subscription_id: int) -> None:
        """Ends a subscription; events that are still on their way are given back."""
        with self._changed:
            if self._events.pop(subscription_id, None) is None or self._lost is not None:
                return
        self.post(wire.Cancel(id=0, request_id=subscription_id))

    def release(self, leases: list[wire.LeaseDescriptor]) -> None:
        """Ends holds without waiting for the answer."""
        for lease in leases:
            self.post(wire.Release(id=0, lease_id=lease.lease_id))

    def release_later(self, leases: list[wire.LeaseDescriptor]) -> None:
        """``release`` for those who hold the lock: queued, and sent by the thread that reads."""
        for lease in leases:
            self._post(wire.Release(id=next(self._ids), lease_id=lease.lease_id))

    def run_until(self, done: Callable[[], bool], deadline: Deadline) -> None:
        """Reads, or lets another thread read, until ``done()``, which is evaluated under the lock.

        Raises:
            TimeoutError: ``done()`` stayed false until ``deadline``.
            ConnectionLostError: it can no longer become true.
        """
        while self._take_turn(done, deadline):
            try:
                self._read(deadline)
            finally:
                self._end_turn()
            self._flush_now()

    def under_lock(self, action: Callable[[], _T]) -> _T:
        """Calls ``action`` while no reply or event is taken in."""
        with self._changed:
            return action()

    def drain(self) -> None:
        """Takes in what has arrived already, without waiting."""
        with self._changed:
            if self._reading or self._lost is not None:
                return
            self._reading = True
        try:
            self._read_available()
        finally:
            self._end_turn()
        self._flush_now()

    # -- reading -------------------------------------------------------------------------------------------------

    def _take_turn(self, done: Callable[[], bool], deadline: Deadline) -> bool:
        with self._changed:
            while not done():
                if self._lost is not None:
                    raise ConnectionLostError(self._lost)
                if not self._reading:
                    self._reading = True
                    return True
                self._changed.wait(deadline.left_s())
            return False

    def _end_turn(self) -> None:
        with self._changed:
            self._reading = False
            if self._closed:
                self._sock.close()
            self._changed.notify_all()

    def _wait(self, events: int, timeout_s: float | None) -> int:
        poller = select.poll()
        try:
            poller.register(self._sock, events)
        except ValueError:  # closed meanwhile
            return select.POLLHUP
        found = poller.poll(None if timeout_s is None else timeout_s * 1000 + 1)
        return found[0][1] if found else 0

    def _read(self, deadline: Deadline) -> None:
        self._wait(select.POLLIN, deadline.left_s())
        self._read_available()

    def _read_available(self) -> None:
        """Reads until the socket is empty; the bytes that come after that were sent after ``quiet_at``."""
        while True:
            asked_at = time.monotonic()
            try:
                chunk = self._receive()
            except (BlockingIOError, InterruptedError):
                self.quiet_at = asked_at
                return
            except OSError as error:
                self._fail(f"the connection to the worker broke: {error.strerror}")
                return
            if not chunk:
                self._fail("the worker closed the connection")
                return
            if not self._take_in(chunk):
                return

    def _receive(self) -> bytes:
        if self._descriptors is None:
            return self._sock.recv(RECEIVE_BYTES)
        chunk, ancillary, flags, _peer = self._sock.recvmsg(
            RECEIVE_BYTES, ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC
        )
        self._descriptors.extend(descriptors_in(ancillary))
        if flags & socket.MSG_CTRUNC:
            self._fail("descriptors were lost: too many were sent, or this process has none left")
        return chunk

    def _take_in(self, chunk: bytes) -> bool:
        try:
            with self._changed:
                for payload in self._decoder.feed(chunk):
                    self._dispatch(wire.decode_reply(payload))
        except (FrameError, msgspec.DecodeError) as error:
            self._fail(f"the worker sent no valid message: {error}")
            return False
        return True

    def _dispatch(self, reply: wire.Reply) -> None:
        on_step = self._events.get(reply.id) if isinstance(reply, wire.StepEvent) else None
        if on_step is not None and isinstance(reply, wire.StepEvent):
            on_step(reply)
        elif reply.id in self._waiting and not isinstance(reply, wire.StepEvent | wire.StateEvent):
            self._replies[reply.id] = reply
        else:
            self._drop(self._abandoned.pop(reply.id, None), reply)

    def _drop(self, request: wire.Request | None, reply: wire.Reply) -> None:
        """Gives back what a reply that nobody waits for brought."""
        if isinstance(reply, wire.ForwardReply | wire.StepEvent):
            self.release_later(reply.leases)
        elif isinstance(reply, wire.LeaseReply) and isinstance(request, wire.Hold):
            self.release_later([reply.lease])

    # -- giving up -----------------------------------------------------------------------------------------------

    def _abandon(self, request: wire.Request) -> None:
        with self._changed:
            self._waiting.discard(request.id)
            self._events.pop(request.id, None)
            reply = self._replies.pop(request.id, None)
            if self._lost is not None:
                return
            if reply is not None:
                self._drop(request, reply)
            else:
                self._abandoned[request.id] = request
                if isinstance(request, wire.Forward | wire.Subscribe):
                    self._post(wire.Cancel(id=next(self._ids), request_id=request.id))
        self._flush_now()

    def _fail(self, reason: str) -> None:
        with self._changed:
            self._lose(reason)

    def _lose(self, reason: str) -> None:
        """Notes the end of the connection; the first reason counts. The lock is held."""
        if self._lost is None:
            self._lost = reason
            self._waiting.clear()
            self._abandoned.clear()
            self._outbox.clear()
        self._changed.notify_all()

    # -- sending -------------------------------------------------------------------------------------------------

    def _post(self, request: wire.Request) -> None:
        self._abandoned[request.id] = request
        self._outbox.append(frame(wire.encode(request)))

    def _flush_now(self) -> None:
        """Sends what the socket takes without waiting; another thread that is sending sees to it otherwise."""
        while self._outbox and self._sending.acquire(blocking=False):
            try:
                if not self._send_some():
                    return
            finally:
                self._sending.release()

    def _flush(self, deadline: Deadline) -> None:
        """Sends everything, reading meanwhile: a worker that waits for this side to read takes nothing before."""
        left = deadline.left_s()
        if not self._sending.acquire(timeout=-1 if left is None else left):
            raise TimeoutError("another thread's request is still being sent")
        try:
            while not self._send_some():
                self._wait_to_send(deadline)
        finally:
            self._sending.release()
        self._flush_now()  # what was queued between the last look and the release

    def _send_some(self) -> bool:
        """Whether everything is sent. The sending lock is held."""
        while True:
            try:
                if not self._unsent:
                    self._unsent = memoryview(self._outbox.popleft())
            except IndexError:
                return True
            try:
                self._unsent = self._unsent[self._sock.send(self._unsent) :]
            except (BlockingIOError, InterruptedError):
                return False
            except OSError:
                self._fail("the worker closed the connection")
                self._unsent = memoryview(b"")
                return True

    def _wait_to_send(self, deadline: Deadline) -> None:
        left = deadline.left_s()
        with self._changed:
            may_read = not self._reading
            self._reading = True
        if not may_read:  # somebody else reads; look again soon, for that thread may be done before this one
            self._wait(select.POLLOUT, _SHARED_WAIT_S if left is None else min(left, _SHARED_WAIT_S))
            return
        try:
            if self._wait(select.POLLOUT | select.POLLIN, left) & ~select.POLLOUT:
                self._read_available()
        finally:
            self._end_turn()
