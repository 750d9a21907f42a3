"""The asyncio side of a connection to the worker: calls, events, descriptors."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias, overload

import msgspec

from . import messages as wire
from .channel import FrameChannel
from .description import Description, description_of
from .descriptors import close_all
from .errors import ConnectionLostError, FrameError, RemoteError
from .subscription import Subscription, Topic

DEFAULT_TIMEOUT_S = 10.0
BACKLOG_FULL_S = 0.02
Leases: TypeAlias = list[wire.LeaseDescriptor]


class WorkerClient:
    """Calls a worker over one connection, which is also the holder of every lease that is taken through it.

    Make one with ``connect`` or ``over`` on a running loop (asyncio's own or uvloop) and use it on that loop only.

    Attributes:
        hello: the worker's answer to this connection's ``hello``.
        closed: set once the connection is gone; every call then raises ``ConnectionLostError``.
        on_close: called once, on the loop, with ``None`` (EOF or ``close``) or the exception that ended it.
    """

    hello: wire.HelloReply

    def __init__(self, sock: socket.socket) -> None:
        self.closed = asyncio.Event()
        self.on_close: Callable[[Exception | None], None] | None = None
        self._ids = itertools.count(1)
        self._futures: dict[int, asyncio.Future[wire.Reply]] = {}
        self._subscriptions: dict[int, Subscription] = {}
        self._abandoned: dict[int, wire.Request] = {}
        self._channel = FrameChannel(
            sock, self._on_frame, self._on_closed, accept_descriptors=True, back_pressure=False
        )

    @classmethod
    async def connect(
        cls, path: str | Path, *, client_name: str = "", timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> WorkerClient:
        """Connects to the worker's socket and says hello.

        Raises:
            ConnectionLostError: nobody listens there, or the worker hung up.
            RemoteError: the worker does not speak this protocol version.
            TimeoutError: no answer within ``timeout_s`` seconds.
        """
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.setblocking(False)  # noqa: FBT003 - the standard library's own signature
        try:
            async with asyncio.timeout(timeout_s):
                await _connect(sock, str(path))
        except OSError as error:
            sock.close()
            if isinstance(error, TimeoutError):
                raise
            raise ConnectionLostError(f"no worker listens on its socket: {error.strerror}") from error
        except BaseException:
            sock.close()
            raise
        return await cls.over(sock, client_name=client_name, timeout_s=timeout_s)

    @classmethod
    async def over(
        cls, sock: socket.socket, *, client_name: str = "", timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> WorkerClient:
        """Says hello over a connected socket, which belongs to the client from here on; errors as ``connect``."""
        client = cls(sock)
        request = wire.Hello(id=0, protocol_version=wire.PROTOCOL_VERSION, client_name=client_name)
        try:
            async with asyncio.timeout(timeout_s):
                client.hello = await client.call(request)
        except BaseException:
            client.close()
            raise
        return client

    @overload
    async def call(self, request: wire.Hello) -> wire.HelloReply: ...
    @overload
    async def call(self, request: wire.Forward) -> wire.ForwardReply: ...
    @overload
    async def call(self, request: wire.Hold | wire.Renew) -> wire.LeaseReply: ...
    @overload
    async def call(self, request: wire.Release) -> wire.ReleaseReply: ...
    @overload
    async def call(self, request: wire.Cancel) -> wire.CancelReply: ...
    @overload
    async def call(self, request: wire.Read) -> wire.ReadReply: ...
    @overload
    async def call(self, request: wire.Stats) -> wire.StatsReply: ...
    @overload
    async def call(self, request: wire.Describe) -> wire.DescribeReply: ...
    @overload
    async def call(self, request: wire.Subscribe) -> wire.SubscribeReply: ...

    async def call(self, request: wire.Request) -> wire.Reply:
        """Sends a request and awaits its reply; whatever ``request.id`` is, the client numbers it anew.

        When the awaiting task is cancelled, a ``forward`` is cancelled at the worker, and leases that its answer or
        that of a ``hold`` still brings are released. ``describe`` and ``subscribe`` have methods of their own.

        Raises:
            RemoteError: the worker answered with an error frame.
            ConnectionLostError: the connection is gone, or went while the call was waiting.
            FrameError: the request is larger than a frame may be.
        """
        return await self._call(msgspec.structs.replace(request, id=next(self._ids)))

    async def describe(self) -> Description:
        """Asks for the region and the target; the descriptors of the answer belong to the caller.

        Raises:
            RemoteError: the worker is not ready (``worker_unavailable``).
            UnsupportedTransportError: the region contradicts itself, or its descriptors are not what it needs.
        """
        reply = await self.call(wire.Describe(id=0))
        return description_of(reply, self._take_descriptors_of(reply))

    async def subscribe(
        self,
        topics: list[Topic],
        *,
        lease_ttl_s: float = 30.0,
        on_event: Callable[[wire.Reply], None] | None = None,
    ) -> Subscription:
        """Follows ``state`` changes and published ``steps``; iterate over the answer, or pass ``on_event``.

        ``on_event`` is called on the loop for every event as it arrives; the leases of a step are then its own
        affair. Events of one iterator are latest-wins per topic, see ``Subscription``.
        """
        request = wire.Subscribe(id=next(self._ids), topics=topics, lease_ttl_s=lease_ttl_s)
        subscription = Subscription(self._end_subscription(request.id), self._release, on_event)
        self._subscriptions[request.id] = subscription
        try:
            reply = await self._call(request)
        except BaseException:
            self._subscriptions.pop(request.id, None)
            raise
        assert isinstance(reply, wire.SubscribeReply)  # noqa: S101 - _call checked it, mypy cannot know
        subscription.state = reply.state
        return subscription

    async def read_all(self, lease: wire.LeaseDescriptor) -> bytes:
        """The bytes of a lease's rows, fetched in chunks of at most 4 MiB: for those who cannot map the slab."""
        data = bytearray()
        while len(data) < lease.byte_size:
            reply = await self.call(wire.Read(id=0, lease_id=lease.lease_id, offset=len(data)))
            if reply.offset != len(data) or not reply.data or reply.byte_size != lease.byte_size:
                error = FrameError("the worker's answer to read is not the part that was asked for")
                self._channel.close(error)
                raise error
            data += reply.data
        return bytes(data)

    def release_soon(self, leases: Leases) -> None:
        """Ends this connection's holds without waiting for the worker's answers."""
        if not self.closed.is_set():
            self._release(leases)

    def close(self) -> None:
        """Closes the connection, which ends all its holds; idempotent."""
        self._channel.close()

    async def _call(self, request: wire.Request) -> wire.Reply:
        if self.closed.is_set():
            raise ConnectionLostError("the connection to the worker is closed")
        future: asyncio.Future[wire.Reply] = asyncio.get_running_loop().create_future()
        self._futures[request.id] = future
        try:
            self._channel.send(wire.encode(request))
            reply = await future
        except asyncio.CancelledError:
            self._give_up(request, future)
            raise
        finally:
            self._futures.pop(request.id, None)
        if type(reply) is not wire.REPLY_OF[type(request)]:
            error = FrameError(f"the worker answered {type(request).__name__} with {type(reply).__name__}")
            self._channel.close(error)
            raise error
        return reply

    def _give_up(self, request: wire.Request, future: asyncio.Future[wire.Reply]) -> None:
        if self.closed.is_set():
            return
        if future.done() and not future.cancelled():
            if future.exception() is None:
                self._drop(request, future.result())
            return
        self._abandoned[request.id] = request
        if isinstance(request, wire.Forward):
            self._send_unasked(wire.Cancel(id=next(self._ids), request_id=request.id))

    def _send_unasked(self, request: wire.Request) -> None:
        """Sends a request whose answer nobody waits for."""
        self._abandoned[request.id] = request
        self._channel.send(wire.encode(request))

    def _release(self, leases: Leases) -> None:
        for lease in leases:
            self._send_unasked(wire.Release(id=next(self._ids), lease_id=lease.lease_id))

    def _end_subscription(self, request_id: int) -> Callable[[], None]:
        def end() -> None:
            if self._subscriptions.pop(request_id, None) is not None:
                self._send_unasked(wire.Cancel(id=next(self._ids), request_id=request_id))

        return end

    def _drop(self, request: wire.Request | None, reply: wire.Reply) -> None:
        """Gives back what a reply that nobody waits for brought."""
        if isinstance(reply, wire.ForwardReply | wire.StepEvent):
            self._release(reply.leases)
        elif isinstance(reply, wire.LeaseReply) and isinstance(request, wire.Hold):
            self._release([reply.lease])
        elif isinstance(reply, wire.DescribeReply):
            close_all(self._take_descriptors_of(reply))

    def _take_descriptors_of(self, reply: wire.DescribeReply) -> list[int]:
        return self._channel.take_descriptors(2 if reply.region.kind == "memfd" else 1)

    def _on_frame(self, payload: bytes) -> None:
        try:
            reply = wire.decode_reply(payload)
        except msgspec.DecodeError as error:
            self._channel.close(FrameError(f"the worker sent no valid message: {error}"))
            return
        subscription = self._subscriptions.get(reply.id)
        if subscription is not None and isinstance(reply, wire.StateEvent | wire.StepEvent):
            subscription.offer(reply)
            return
        future = self._futures.get(reply.id)
        if future is None or future.done():
            self._drop(self._abandoned.pop(reply.id, None), reply)
        elif isinstance(reply, wire.ErrorReply):
            future.set_exception(RemoteError(reply.code, reply.detail, reply.retry_after_s, reply.field))
        else:
            future.set_result(reply)

    def _on_closed(self, error: Exception | None) -> None:
        self.closed.set()
        lost = ConnectionLostError("the worker closed the connection" if error is None else str(error))
        for future in self._futures.values():
            if not future.done():
                future.set_exception(lost)
        for subscription in self._subscriptions.values():
            subscription.end(lost)
        self._futures.clear()
        self._abandoned.clear()
        if self.on_close is not None:
            self.on_close(error)


async def _connect(sock: socket.socket, path: str) -> None:
    """Connects a non-blocking unix socket, which is done at once or, with a full backlog, not begun.

    asyncio's ``sock_connect`` takes the latter for a connection in progress, and then for one that stands.
    """
    while True:
        try:
            sock.connect(path)
        except BlockingIOError:
            await asyncio.sleep(BACKLOG_FULL_S)
        else:
            return
