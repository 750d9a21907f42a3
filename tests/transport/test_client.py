import asyncio
import contextlib
import os
import socket

import pytest

from app.transport import messages as wire
from app.transport.client import WorkerClient
from app.transport.errors import (
    ConnectionLostError,
    FrameError,
    RemoteError,
    UnsupportedTransportError,
)
from app.transport.memfd import map_read_only


@contextlib.asynccontextmanager
async def connected(stub, **options):
    """A client of a stub worker on the same loop."""
    worker = stub.Stub(**options)
    ours, theirs = socket.socketpair()
    worker.accept(theirs)
    client = await WorkerClient.over(ours, client_name="test")
    try:
        yield client, worker
    finally:
        client.close()


def forward(**fields):
    return wire.Forward(id=0, **fields)


def order(text):
    return forward(prompts=[text])


def test_calls_are_answered_whatever_their_order(run, stub):
    async def body():
        async with connected(stub) as (client, worker):
            assert client.hello.epoch == worker.epoch
            never = asyncio.create_task(client.call(order("never")))
            replies = await asyncio.gather(
                client.call(forward(prompt_token_ids=[[1, 2, 3]])), client.call(wire.Stats(id=0))
            )
            assert isinstance(replies[0], wire.ForwardReply)
            assert replies[0].leases[0].token_ids == [1, 2, 3]
            assert isinstance(replies[1], wire.StatsReply)
            assert not never.done()
            await client.call(order("flush"))
            assert (await never).leases[0].token_ids == [1, 2, 3]

    run(body())


def test_connects_by_path_and_fails_clearly_without_a_worker(run, start_stub, tmp_path):
    worker = start_stub()

    async def body():
        client = await WorkerClient.connect(worker.path)
        assert client.hello.worker_pid == worker.process.pid
        client.close()
        for path in (tmp_path / "nothing", tmp_path / ("x" * 200)):
            with pytest.raises(ConnectionLostError):
                await WorkerClient.connect(path)

    run(body())


def test_an_error_frame_is_raised_where_it_belongs(run, stub):
    async def body():
        async with connected(stub) as (client, _):
            with pytest.raises(RemoteError) as caught:
                await client.call(wire.Renew(id=0, lease_id="unknown"))
            assert (caught.value.code, caught.value.detail) == ("lease_not_found", "no such lease")
            await client.call(wire.Stats(id=0))

    run(body())


def test_a_lost_connection_fails_every_call_at_once(run, stub):
    async def body():
        async with connected(stub) as (client, _):
            ends = []
            client.on_close = ends.append
            calls = [asyncio.create_task(client.call(order("never"))) for _ in range(5)]
            events = await client.subscribe(["state"])
            waiting = asyncio.create_task(anext(events))
            calls.append(asyncio.create_task(client.call(order("hangup"))))
            results = await asyncio.gather(*calls, waiting, return_exceptions=True)
            assert [type(result) for result in results] == [ConnectionLostError] * 7
            assert client.closed.is_set()
            assert ends == [None]
            with pytest.raises(ConnectionLostError):
                await client.call(wire.Stats(id=0))

    run(body())


def test_a_killed_worker_fails_the_calls_that_wait(run, start_stub):
    worker = start_stub()

    async def body():
        client = await WorkerClient.connect(worker.path)
        call = asyncio.create_task(client.call(order("never")))
        await client.call(wire.Stats(id=0))
        worker.kill()
        with pytest.raises(ConnectionLostError):
            async with asyncio.timeout(5):
                await call

    run(body())


def test_garbage_from_the_worker_ends_the_connection(run, stub):
    async def body():
        async with connected(stub) as (client, _):
            ends = []
            client.on_close = ends.append
            with pytest.raises(ConnectionLostError, match="no valid message"):
                await client.call(order("garbage"))
            assert isinstance(ends[0], FrameError)

    run(body())


def test_a_request_that_is_too_long_harms_nothing(run, stub):
    async def body():
        async with connected(stub) as (client, _):
            with pytest.raises(FrameError):
                await client.call(forward(prompts=["x" * (17 << 20)]))
            await client.call(wire.Stats(id=0))

    run(body())


def test_cancelling_a_forward_cancels_it_at_the_worker(run, stub, eventually):
    async def body():
        async with connected(stub) as (client, worker):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await client.call(order("never"))
            await eventually(lambda: worker.cancelled)
            assert worker.cancelled == [worker.unanswered[0][2].id]
            # Its answer comes all the same: the leases that it brings are given back.
            await client.call(order("flush"))
            stats = await client.call(wire.Stats(id=0))
            assert stats.leases_active == 1

    run(body())


def test_a_call_cancelled_after_its_answer_came_gives_the_leases_back(run, stub):
    async def body():
        async with connected(stub) as (client, worker):
            call = asyncio.create_task(client.call(order("never")))
            await client.call(wire.Stats(id=0))
            _, connection, request = worker.unanswered.pop()
            leases = worker.publish(connection, [[1]], 30.0)
            reply = wire.ForwardReply(id=request.id, epoch=worker.epoch, leases=leases)
            client._on_frame(wire.encode(reply))
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert (await client.call(wire.Stats(id=0))).leases_active == 0

    run(body())


def test_describe_hands_over_descriptors_that_map(run, stub, descriptors):
    async def body():
        async with connected(stub) as (client, worker):
            before = descriptors()
            for _ in range(3):
                with await client.describe() as description:
                    region = description.reply.region
                    assert region == worker.region
                    slab = map_read_only(description.slab_fd, region.byte_size)
                    worker.slab.memory.buffer[5:7] = b"hi"
                    assert slab[5:7] == b"hi"
                    slab.release()
            both = await asyncio.gather(client.describe(), client.describe())
            for description in both:
                assert os.fstat(description.slab_fd).st_size == worker.region.byte_size
                description.close()
            assert descriptors() == before

    run(body())


@pytest.mark.parametrize(
    "overrides",
    [
        {"format_version": 2},
        {"byte_size": 1 << 40},
        {"control_byte_size": 1 << 20},
        {"control_byte_size": 64},
        {"slots": 2**40},
        {"row_bytes": 3},
        {"kind": "cuda_ipc"},
    ],
)
def test_a_region_that_cannot_be_is_refused_without_a_leak(run, stub, descriptors, overrides):
    async def body():
        async with connected(stub, region_overrides=overrides) as (client, _):
            before = descriptors()
            with pytest.raises(UnsupportedTransportError):
                await client.describe()
            await client.call(wire.Stats(id=0))
            assert descriptors() - before <= 1  # a second one may wait here until the connection ends
            client.close()
            assert descriptors() < before

    run(body())


def test_a_describe_that_was_given_up_leaks_nothing(run, stub, descriptors):
    async def body():
        async with connected(stub) as (client, _):
            before = descriptors()
            for _ in range(10):
                call = asyncio.create_task(client.describe())
                await asyncio.sleep(0)
                call.cancel()
                await asyncio.gather(call, return_exceptions=True)
            await client.call(wire.Stats(id=0))
            with await client.describe():
                pass
            assert descriptors() == before

    run(body())


def test_steps_latest_wins_and_what_was_skipped_is_released(run, stub):
    async def body():
        async with connected(stub) as (client, _):
            events = await client.subscribe(["steps"])
            assert events.state.state == "ready"
            await client.call(order("step 4"))
            event = await anext(events)
            assert isinstance(event, wire.StepEvent)
            assert event.missed == 3
            stats = await client.call(wire.Stats(id=0))
            assert stats.leases_active == 1 + len(event.leases)
            events.close()
            with pytest.raises(StopAsyncIteration):
                await anext(events)
            await client.call(order("step 1"))
            assert (await client.call(wire.Stats(id=0))).leases_active == 3

    run(body())


def test_events_go_to_a_callback(run, stub):
    async def body():
        async with connected(stub) as (client, _):
            seen = []
            await client.subscribe(["steps"], on_event=seen.append)
            await client.call(order("step 3"))
            assert [event.missed for event in seen] == [0, 0, 0]

    run(body())


def test_read_all_puts_the_parts_together(run, stub):
    async def body():
        async with connected(stub) as (client, _):
            for ids in ([], [1], list(range(60))):
                reply = await client.call(forward(prompt_token_ids=[ids]))
                data = await client.read_all(reply.leases[0])
                assert data == stub.rows_of(ids, 16, "float32")

    run(body())
