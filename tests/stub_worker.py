"""A worker without a model, for tests of readers: real socket, real slab, rows that follow from the token ids.

Run as a process: ``python tests/stub_worker.py SOCKET '{"kind": "memfd", "dtype": "float32", ...}'``. Text prompts are
orders: see ``Stub.order``.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import struct
import sys
import time

from app.transport import messages as wire
from app.transport.channel import FrameChannel
from app.transport.control_page import ControlPageWriter, control_byte_size
from app.transport.memfd import SealedMemory
from app.transport.region import DTYPE_BYTES, RawHandle, RegionDescriptor, RegionDevice, slot_bytes_for


def row_bytes_of(token_id: int, width: int, dtype: str) -> bytes:
    """Element ``j`` of a row is ``(token_id + j) % 128``, exact in every float type but float8, where bits are."""
    values = [(token_id + j) % 128 for j in range(width)]
    if dtype.startswith("float8"):
        return bytes(v % 100 for v in values)  # bit patterns below any NaN
    if dtype == "bfloat16":
        return b"".join(struct.pack("<f", v)[2:] for v in values)
    return struct.pack(f"<{width}{ {'float32': 'f', 'float16': 'e', 'float64': 'd'}[dtype] }", *values)


def rows_of(token_ids: list[int], width: int, dtype: str) -> bytes:
    return b"".join(row_bytes_of(t, width, dtype) for t in token_ids)


class MemfdSlab:
    raw_handle = None
    device = RegionDevice(uuid=None, ordinal=0)

    def __init__(self, byte_size: int) -> None:
        self.memory = SealedMemory("slab", byte_size)
        self.descriptors = [self.memory.read_only_fd]

    def write(self, offset: int, data: bytes) -> None:
        self.memory.buffer[offset : offset + len(data)] = data


class GpuSlab:
    def __init__(self, byte_size: int) -> None:
        from app.transport.cuda_ipc import CudaSlab

        self.slab = CudaSlab(byte_size)
        self.raw_handle: RawHandle | None = self.slab.raw_handle
        self.device = self.slab.device
        self.descriptors: list[int] = []

    def write(self, offset: int, data: bytes) -> None:
        import torch

        if data:
            host = torch.frombuffer(bytearray(data), dtype=torch.uint8)
            self.slab.view(offset, len(data)).copy_(host, non_blocking=True)
            self.slab.record().wait()


class Stub:
    def __init__(
        self,
        *,
        kind: str = "memfd",
        dtype: str = "float32",
        width: int = 16,
        rows_per_slot: int = 64,
        slots: int = 8,
        region_overrides: dict | None = None,
        epoch_on_page: str | None = None,
        loading_answers: int = 0,
    ) -> None:
        row_bytes = width * DTYPE_BYTES[dtype]
        slot_bytes = slot_bytes_for(rows_per_slot, row_bytes)
        self.slab = MemfdSlab(slots * slot_bytes) if kind == "memfd" else GpuSlab(slots * slot_bytes)
        self.epoch = secrets.token_hex(16)
        self.page = SealedMemory("control", control_byte_size(slots))
        self.control = ControlPageWriter(
            memoryview(self.page.buffer), epoch=epoch_on_page or self.epoch, slots=slots
        )
        fields = {
            "format_version": 1,
            "epoch": self.epoch,
            "kind": kind,
            "raw_handle": self.slab.raw_handle,
            "byte_size": slots * slot_bytes,
            "base_offset": 0,
            "device": self.slab.device,
            "slots": slots,
            "slot_bytes": slot_bytes,
            "rows_per_slot": rows_per_slot,
            "row_bytes": row_bytes,
            "dtype": dtype,
            "width": width,
            "control_byte_size": control_byte_size(slots),
            "exporter_pid": self._pid(),
        }
        self.region = RegionDescriptor(**(fields | (region_overrides or {})))
        self.true_region = RegionDescriptor(**fields)
        self.sequences = [0] * slots
        self.step = 0
        self.leases: dict[str, wire.LeaseDescriptor] = {}
        self.holders: dict[str, dict[object, float]] = {}
        self.subscribers: list[tuple[FrameChannel, object, int, float]] = []
        self.loading_answers = loading_answers
        self.cancelled: list[int] = []
        self.unanswered: list[tuple[FrameChannel, object, wire.Forward]] = []
        layout = wire.HiddenStatesLayout(
            source="final",
            layer_ids=None,
            capture_points=None,
            norm="post",
            width=width,
            dtype=dtype,
            bytes_per_token=row_bytes,
            rows=rows_per_slot,
            buffer_bytes=rows_per_slot * row_bytes,
        )
        self.target = wire.TargetDescription(
            model="stub",
            revision=None,
            architecture="Stub",
            dtype=dtype,
            hidden_size=width,
            num_hidden_layers=1,
            vocab_size=2**31,
            max_num_batched_tokens=rows_per_slot,
            device=wire.DeviceInfo(type="cpu", uuid=None, name="stub"),
            hidden_states=layout,
            has_tokenizer=False,
        )

    @staticmethod
    def _pid() -> int:
        import os

        return os.getpid()

    def accept(self, sock: socket.socket) -> None:
        connection = object()
        channel: FrameChannel

        def on_frame(payload: bytes) -> None:
            self.answer(channel, connection, wire.decode_request(payload))

        def on_close(_error: Exception | None) -> None:
            for holders in self.holders.values():
                holders.pop(connection, None)
            self.subscribers = [s for s in self.subscribers if s[1] is not connection]

        channel = FrameChannel(sock, on_frame, on_close)

    def answer(self, channel: FrameChannel, connection: object, request: wire.Request) -> None:
        name = type(request).__name__.lower()
        try:
            reply = getattr(self, f"on_{name}")(channel, connection, request)
        except KeyError:
            reply = wire.ErrorReply(id=request.id, code="lease_not_found", detail="no such lease")
        if reply is not None:
            channel.send(wire.encode(reply))

    def on_hello(self, _channel, _connection, request):
        state = wire.WorkerState(state="ready")
        return wire.HelloReply(
            id=request.id, protocol_version=1, epoch=self.epoch, worker_pid=self._pid(), state=state
        )

    def on_describe(self, channel, _connection, request):
        if self.loading_answers:
            self.loading_answers -= 1
            return wire.ErrorReply(
                id=request.id, code="worker_unavailable", detail="loading", retry_after_s=0.01
            )
        reply = wire.DescribeReply(id=request.id, region=self.region, target=self.target)
        channel.send(wire.encode(reply), [self.page.read_only_fd, *self.slab.descriptors])
        return None

    def on_forward(self, channel, connection, request):
        if request.prompts is not None:
            return self.order(channel, connection, request)
        if sum(map(len, request.prompt_token_ids)) > self.true_region.rows_per_slot:
            return wire.ErrorReply(id=request.id, code="prompt_too_long", detail="x" * 300_000)
        leases = self.publish(connection, request.prompt_token_ids, request.lease_ttl_s)
        if leases is None:
            return wire.ErrorReply(
                id=request.id, code="slab_full", detail="every slot is leased", retry_after_s=0.05
            )
        return wire.ForwardReply(id=request.id, epoch=self.epoch, leases=leases)

    def on_cancel(self, _channel, connection, request):
        self.cancelled.append(request.request_id)
        self.subscribers = [s for s in self.subscribers if (s[1], s[2]) != (connection, request.request_id)]
        return wire.CancelReply(id=request.id, cancelled=True)

    def on_hold(self, _channel, connection, request):
        lease = self.leases[request.lease_id]
        if not self.is_held(lease.lease_id):
            raise KeyError
        return self.hold(connection, lease, request)

    def on_renew(self, _channel, connection, request):
        if self.holders[request.lease_id].get(connection, 0) < time.monotonic():
            return wire.ErrorReply(id=request.id, code="lease_expired", detail="too late")
        return self.hold(connection, self.leases[request.lease_id], request)

    def hold(self, connection, lease, request):
        self.holders[lease.lease_id][connection] = time.monotonic() + request.lease_ttl_s
        lease = _replace(lease, expires_in_s=request.lease_ttl_s)
        return wire.LeaseReply(id=request.id, epoch=self.epoch, lease=lease)

    def on_release(self, _channel, connection, request):
        released = self.holders.get(request.lease_id, {}).pop(connection, None) is not None
        return wire.ReleaseReply(id=request.id, released=released)

    def on_read(self, _channel, _connection, request):
        lease = self.leases[request.lease_id]
        data = rows_of(lease.token_ids, self.true_region.width, self.true_region.dtype)
        part = data[request.offset : request.offset + min(request.max_bytes, 1000)]
        return wire.ReadReply(id=request.id, offset=request.offset, byte_size=len(data), data=part)

    def on_subscribe(self, channel, connection, request):
        self.subscribers.append((channel, connection, request.id, request.lease_ttl_s))
        return wire.SubscribeReply(id=request.id, state=wire.WorkerState(state="ready"))

    def on_stats(self, _channel, _connection, request):
        held = {lease.slot for lease in self.leases.values() if self.is_held(lease.lease_id)}
        return wire.StatsReply(
            id=request.id,
            steps=self.step,
            tokens=0,
            prompts=0,
            forwards=0,
            rejected=0,
            cancelled=len(self.cancelled),
            leases_active=sum(self.is_held(i) for i in self.leases),
            leases_expired=0,
            slots_total=len(self.sequences),
            slots_leased=len(held),
            queue_depth=len(self.unanswered),
            queue_tokens=0,
            connections=0,
            step_seconds_total=0.0,
            rows_capacity_total=0,
        )

    def order(self, channel, connection, request):
        """Obeys a text prompt, see the ``order_...`` methods, and answers with a lease of no rows."""
        word, *rest = request.prompts[0].split()
        reply = getattr(self, f"order_{word}")(channel, connection, request, *rest)
        if reply is False:
            return None
        leases = reply or self.publish(connection, [[]], 30.0)
        if leases is None:
            return wire.ErrorReply(id=request.id, code="slab_full", detail="every slot is leased")
        return wire.ForwardReply(id=request.id, epoch=self.epoch, leases=leases)

    def order_nothing(self, _channel, _connection, _request):
        """Only the lease."""

    def order_never(self, channel, connection, request):
        """Gives no answer, until ``flush``."""
        self.unanswered.append((channel, connection, request))
        return False

    def order_flush(self, _channel, _connection, _request):
        for channel, connection, waiting in self.unanswered:
            leases = self.publish(connection, [[1, 2, 3]], 30.0)
            channel.send(wire.encode(wire.ForwardReply(id=waiting.id, epoch=self.epoch, leases=leases)))
        self.unanswered.clear()

    def order_recycle(self, _channel, _connection, _request):
        """Writes over every slot, leased or not."""
        for slot in range(len(self.sequences)):
            self.fill(slot, [99])

    def order_step(self, _channel, _connection, _request, count):
        for _ in range(int(count)):
            self.publish_step()

    def order_bad(self, _channel, connection, _request, field, value):
        """A lease with ``field`` set to the JSON ``value``."""
        return [_replace(self.publish(connection, [[5]], 30.0)[0], **{field: json.loads(value)})]

    def order_hangup(self, channel, _connection, _request):
        channel.close()

    def order_garbage(self, channel, _connection, _request):
        channel.send(b"\xc1\xc1\xc1")
        return False

    def order_newepoch(self, _channel, _connection, _request):
        """Stores another epoch in the control page."""
        slots = len(self.sequences)
        ControlPageWriter(memoryview(self.page.buffer), epoch=secrets.token_hex(16), slots=slots)

    def is_held(self, lease_id: str) -> bool:
        return any(at > time.monotonic() for at in self.holders[lease_id].values())

    def free_slot(self) -> int | None:
        held = {lease.slot for lease in self.leases.values() if self.is_held(lease.lease_id)}
        return next((slot for slot in range(len(self.sequences)) if slot not in held), None)

    def fill(self, slot: int, token_ids: list[int]) -> None:
        self.sequences[slot] += 1
        self.control.set_sequence(slot, self.sequences[slot])
        region = self.true_region
        self.slab.write(slot * region.slot_bytes, rows_of(token_ids, region.width, region.dtype))
        self.step += 1
        self.control.set_step(slot, step=self.step, rows=len(token_ids))
        self.sequences[slot] += 1
        self.control.set_sequence(slot, self.sequences[slot])

    def publish(self, connection, prompts: list[list[int]], ttl_s: float):
        slot = self.free_slot()
        if slot is None:
            return None
        self.fill(slot, [token for prompt in prompts for token in prompt])
        leases, row, region = [], 0, self.true_region
        for index, prompt in enumerate(prompts):
            lease = wire.LeaseDescriptor(
                lease_id=secrets.token_hex(16),
                index=index,
                slot=slot,
                sequence=self.sequences[slot],
                row_start=row,
                num_tokens=len(prompt),
                byte_offset=slot * region.slot_bytes + row * region.row_bytes,
                byte_size=len(prompt) * region.row_bytes,
                shape=[len(prompt), region.width],
                axes=["token", "hidden"],
                dtype=region.dtype,
                token_ids=prompt,
                expires_at="2030-01-01T00:00:00Z",
                expires_in_s=ttl_s,
            )
            row += len(prompt)
            self.leases[lease.lease_id] = lease
            self.holders[lease.lease_id] = {connection: time.monotonic() + ttl_s}
            leases.append(lease)
        return leases

    def publish_step(self) -> None:
        for channel, connection, request_id, ttl_s in self.subscribers:
            leases = self.publish(connection, [[self.step % 100, 7]], ttl_s)
            if leases is not None:
                event = wire.StepEvent(
                    id=request_id, epoch=self.epoch, step=self.step, missed=0, leases=leases
                )
                channel.send(wire.encode(event))


def _replace(lease: wire.LeaseDescriptor, **changes) -> wire.LeaseDescriptor:
    import msgspec

    return msgspec.structs.replace(lease, **changes)


async def serve(path: str, options: dict) -> None:
    stub = Stub(**options)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(128)
    listener.setblocking(False)
    print("ready", flush=True)
    while True:
        sock, _ = await asyncio.get_running_loop().sock_accept(listener)
        stub.accept(sock)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], json.loads(sys.argv[2])))
