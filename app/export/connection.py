"""One client of the exporter's socket: decodes its calls, answers them, and ends with everything it held."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ..transport import messages as wire
from ..transport.channel import FrameChannel
from ..transport.errors import FrameError
from .call_error import CallError
from .exporter import Exporter
from .exporter_error import ExporterError
from .job import Job
from .lease_records import Lease
from .subscriptions import Subscriptions

if TYPE_CHECKING:
    from .server import Server

_logger = logging.getLogger(__name__)
MAX_CALLS_IN_FLIGHT: Final = 1024
MAX_HELD_LEASES: Final = 65536
MAX_READS_AT_ONCE: Final = 4
MAX_TEXT_IN_WORK: Final = 64 << 20


class Connection:
    """A connected client, and the holder of what it leases.

    Args:
        server: the exporter's.
        sock: the connected socket.
        on_end: called once when the connection is gone.
    """

    def __init__(self, server: Server, sock: socket.socket, on_end: Callable[[Connection], None]) -> None:
        self._server = server
        self._on_end = on_end
        self._greeted = False
        self._since = time.monotonic()
        self._reads = asyncio.Semaphore(MAX_READS_AT_ONCE)
        self._jobs: dict[int, Job] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self.subscriptions = Subscriptions(self)
        self._calls: dict[type[wire.Request], Callable[[Any], None]] = {
            wire.Describe: self._describe,
            wire.Forward: self._forward,
            wire.Cancel: self._cancel,
            wire.Hold: self._hold,
            wire.Renew: self._renew,
            wire.Release: self._release,
            wire.Read: self._read,
            wire.Subscribe: self._subscribe,
            wire.Stats: self._stats,
        }
        self.channel = FrameChannel(sock, self._on_frame, self._on_close)

    @property
    def busy(self) -> bool:
        """Whether a call that blocks is on its way: one whose texts are being encoded, one that reads."""
        return bool(self._tasks)

    def overdue(self, now: float, hello_s: float, frame_s: float) -> str | None:
        """Why this client has kept the server waiting too long, if it has."""
        if not self._greeted and now - self._since > hello_s:
            return f"no hello within {hello_s:g} s"
        begun = self.channel.frame_begun_at
        if begun is not None and now - begun > frame_s:
            return f"a frame was not finished within {frame_s:g} s"
        return None

    def send(self, reply: wire.Reply, descriptors: list[int] | None = None) -> None:
        """Queues a frame for the client."""
        try:
            self.channel.send(wire.encode(reply), descriptors)
        except FrameError:
            detail = "The answer is longer than a frame may be; ask for fewer prompts at once."
            self.channel.send(
                wire.encode(wire.ErrorReply(id=reply.id, code="request_too_large", detail=detail))
            )

    def describe_lease(self, lease: Lease) -> wire.LeaseDescriptor:
        """A lease as this holder sees it."""
        exporter = self._server.exporter()
        placement, region = lease.placement, exporter.slab.region
        expires_in_s = exporter.ledger.expires_in_s(lease, self)
        at = datetime.now(UTC) + timedelta(seconds=expires_in_s)
        return wire.LeaseDescriptor(
            lease_id=lease.lease_id,
            index=lease.index,
            slot=placement.slot,
            sequence=placement.sequence,
            row_start=placement.row_start,
            num_tokens=placement.num_tokens,
            byte_offset=exporter.slab.byte_offset(placement.slot, placement.row_start),
            byte_size=placement.num_tokens * region.row_bytes,
            shape=[placement.num_tokens, region.width],
            axes=["token", "hidden"],
            dtype=region.dtype,
            token_ids=lease.token_ids,
            expires_at=at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            expires_in_s=expires_in_s,
        )

    def _on_close(self, error: Exception | None) -> None:
        if error is not None:
            _logger.info("a connection ended: %s", error)
        for task in self._tasks.values():
            task.cancel()
        self._server.leave(self)
        self._on_end(self)

    def _on_frame(self, payload: bytes) -> None:
        try:
            request = wire.decode_request(payload)
        except (msgspec.DecodeError, RecursionError) as error:
            code = "invalid_request" if isinstance(error, msgspec.ValidationError) else "malformed_frame"
            detail = f"The frame is no valid call: {error}"[:300]
            self._fail(wire.request_id_of(payload), CallError(code, detail))
            return
        try:
            self._answer(request)
        except CallError as error:
            self._fail(request.id, error)
        except Exception:
            _logger.exception("a call failed")
            self._fail(
                request.id, CallError("worker_error", "The call failed; the worker's log has the cause.")
            )

    def _fail(self, request_id: int, error: CallError) -> None:
        self.send(
            wire.ErrorReply(
                id=request_id,
                code=error.code,
                detail=error.detail,
                retry_after_s=error.retry_after_s,
                field=error.field,
            )
        )

    def _answer(self, request: wire.Request) -> None:
        if isinstance(request, wire.Hello):
            self._hello(request)
            return
        if not self._greeted:
            raise CallError("hello_first", "Say hello before any other call.")
        self._calls[type(request)](request)

    def _hello(self, request: wire.Hello) -> None:
        if request.protocol_version != wire.PROTOCOL_VERSION:
            detail = (
                f"This worker speaks protocol version {wire.PROTOCOL_VERSION}, not {request.protocol_version}; "
                "run reader and worker from the same release."
            )
            raise CallError("protocol_unsupported", detail)
        self._greeted = True
        self.send(self._server.greeting(request.id))

    def _describe(self, request: wire.Describe) -> None:
        exporter = self._server.exporter()
        reply = wire.DescribeReply(id=request.id, region=exporter.slab.region, target=exporter.description)
        self.send(reply, exporter.slab.descriptors)

    def _hold(self, request: wire.Hold) -> None:
        exporter = self._server.exporter_for_more()
        self._check_held(exporter, 1)

        def hold() -> None:
            lease = exporter.ledger.hold(request.lease_id, self, request.lease_ttl_s)
            reply = wire.LeaseReply(id=request.id, epoch=self._server.epoch, lease=self.describe_lease(lease))
            self.send(reply)

        coming = exporter.coming(request.lease_id)
        if coming is None:
            hold()
            return
        self._check_in_flight(request.id)
        self._start(request.id, self._once(coming, hold))

    async def _once(self, coming: asyncio.Future[None], act: Callable[[], None]) -> None:
        """Acts when a lease that was announced is there, or is given up: ``act`` then fails as for any other id."""
        await asyncio.wait([coming])  # whose end belongs to all who wait for it: never to be cancelled
        act()

    def _renew(self, request: wire.Renew) -> None:
        lease = self._server.exporter().ledger.renew(request.lease_id, self, request.lease_ttl_s)
        self.send(wire.LeaseReply(id=request.id, epoch=self._server.epoch, lease=self.describe_lease(lease)))

    def _release(self, request: wire.Release) -> None:
        released = self._server.exporter().ledger.release(request.lease_id, self)
        self.send(wire.ReleaseReply(id=request.id, released=released))

    def _subscribe(self, request: wire.Subscribe) -> None:
        self.subscriptions.add(request)
        self.send(wire.SubscribeReply(id=request.id, state=self._server.state))

    def _stats(self, request: wire.Stats) -> None:
        self.send(self._server.stats(request.id))

    def _cancel(self, request: wire.Cancel) -> None:
        job = self._jobs.get(request.request_id)
        task = self._tasks.get(request.request_id)
        cancelled = CallError("cancelled", "The call was cancelled.")
        if job is not None:
            self._server.exporter().cancel(job, cancelled)
        elif task is not None:
            task.cancel()
            self._fail(request.request_id, cancelled)
        found = job is not None or task is not None or self.subscriptions.end(request.request_id)
        self.send(wire.CancelReply(id=request.id, cancelled=found))

    def _forward(self, request: wire.Forward) -> None:
        exporter = self._server.exporter_for_more()
        if (request.prompts is None) == (request.prompt_token_ids is None):
            raise CallError("invalid_request", "Give exactly one of prompts and prompt_token_ids.")
        prompts = request.prompts or request.prompt_token_ids
        if not prompts:
            raise CallError("empty_prompt", "Give at least one prompt.")
        self._check_in_flight(request.id)
        self._check_held(exporter, len(prompts))
        if request.prompt_token_ids is not None:
            self._submit(exporter, request, request.prompt_token_ids)
        else:
            self._start(request.id, self._encode_and_submit(exporter, request))

    async def _encode_and_submit(self, exporter: Exporter, request: wire.Forward) -> None:
        texts = request.prompts or []
        size = sum(map(len, texts))
        if exporter.text_in_work and exporter.text_in_work + size > MAX_TEXT_IN_WORK:
            raise CallError("overloaded", "Too much text is being encoded; try again.", retry_after_s=1.0)
        exporter.text_in_work += size
        try:
            prompts = await asyncio.to_thread(exporter.encode, texts)
        except ExporterError as error:
            raise CallError(error.code, error.detail) from None
        finally:
            exporter.text_in_work -= size
        del self._tasks[request.id]
        self._submit(exporter, request, prompts)

    def _submit(self, exporter: Exporter, request: wire.Forward, prompts: list[list[int]]) -> None:
        def answer(result: list[Lease] | CallError) -> None:
            self._jobs.pop(request.id, None)
            if isinstance(result, CallError):
                self._fail(request.id, result)
                return
            leases = [self.describe_lease(lease) for lease in result]
            self.send(wire.ForwardReply(id=request.id, epoch=self._server.epoch, leases=leases))

        self._jobs[request.id] = exporter.submit(
            prompts,
            holder=self,
            client=(self, request.client),
            ttl_s=request.lease_ttl_s,
            deadline_s=request.deadline_s,
            answer=answer,
            field="prompts" if request.prompts is not None else "prompt_token_ids",
        )

    def _read(self, request: wire.Read) -> None:
        exporter = self._server.exporter()
        lease = exporter.ledger.find(request.lease_id)
        size = lease.placement.num_tokens * exporter.slab.region.row_bytes
        start = min(request.offset, size)
        length = min(request.max_bytes, size - start)
        at = exporter.slab.byte_offset(lease.placement.slot, lease.placement.row_start) + start
        self._check_in_flight(request.id)

        async def copy() -> None:
            async with self._reads:
                await self.channel.drained()  # or the answers of a client that reads none would pile up here
                data = await asyncio.to_thread(exporter.slab.read, at, length)
                exporter.ledger.find(request.lease_id)  # it must have stood until the copy was made
                self.send(wire.ReadReply(id=request.id, offset=start, byte_size=size, data=data))

        self._start(request.id, copy())

    def _start(self, request_id: int, work: object) -> None:
        """Runs what would block the loop, as a task that ends with the connection."""

        async def run() -> None:
            try:
                await work  # type: ignore[misc]  # a coroutine
            except CallError as error:
                self._fail(request_id, error)
            except Exception:
                _logger.exception("a call failed")
                failed = CallError("worker_error", "The call failed; the worker's log has the cause.")
                self._fail(request_id, failed)
            finally:
                self._tasks.pop(request_id, None)

        self._tasks[request_id] = asyncio.create_task(run())

    def _check_in_flight(self, request_id: int) -> None:
        if request_id in self._jobs or request_id in self._tasks:
            raise CallError("invalid_request", "A call of this id is still unanswered; number calls anew.")
        if len(self._jobs) + len(self._tasks) >= MAX_CALLS_IN_FLIGHT:
            detail = f"{MAX_CALLS_IN_FLIGHT} calls of this connection are unanswered; wait for some."
            raise CallError("overloaded", detail, retry_after_s=1.0)

    def _check_held(self, exporter: Exporter, more: int) -> None:
        if exporter.ledger.held_by(self) + more > MAX_HELD_LEASES:
            detail = f"A connection may hold {MAX_HELD_LEASES} leases; release some."
            raise CallError("overloaded", detail, retry_after_s=1.0)
