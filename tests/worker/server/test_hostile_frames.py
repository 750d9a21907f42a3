"""Whatever a client sends: it gets an error frame or is hung up on, and the worker serves the next one."""

import asyncio
import os
import random
import resource
import socket
import struct
import threading
import time

import msgspec
import pytest
from service import wait_until
from worker_process import RawClient

from app.export.connection import MAX_CALLS_IN_FLIGHT
from app.export.server import MAX_CONNECTIONS, Patience, Server
from app.reader.deadline import Deadline
from app.transport import messages as wire
from app.transport.frames import MAX_FRAME_BYTES, frame

pack = msgspec.msgpack.encode


@pytest.fixture
def unharmed(worker):
    """After the test the worker has as many descriptors as before and little more memory, and answers."""
    with worker.attach() as region:
        region.forward([[1]])
    worker.wait_idle()
    descriptors, memory = worker.descriptors(), worker.resident_bytes()
    yield worker
    with worker.attach() as region:
        region.forward([[1, 2, 3]])
    worker.wait_idle()
    wait_until(lambda: worker.descriptors() <= descriptors, 10)
    assert worker.resident_bytes() - memory < 64 << 20


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff",
        struct.pack("<I", MAX_FRAME_BYTES + 1) + b"x" * 100,
        b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n",
    ],
    ids=["longest length", "one byte too long", "http"],
)
@pytest.mark.parametrize("hello", [True, False])
def test_an_impossible_length_ends_the_connection(unharmed, data, hello):
    with unharmed.raw(hello=hello) as client:
        client.sock.sendall(data)
        assert client.receive() is None


GARBAGE = {
    "empty": b"",
    "not msgpack": b"\xc1" * 50,
    "text": b"hello there",
    "a number": pack(7),
    "a list": pack([1, 2, 3]),
    "nested lists": b"\x91" * 100_000,
    "nested maps": b"\x81\xa1a" * 100_000,
    "nested prompt": b"\x83\xa4type\xa7forward\xa2id\x00\xb0prompt_token_ids" + b"\x91" * 100_000,
    "cut short": pack({"type": "stats", "id": 0, "more": "x" * 50})[:-10],
    "with something behind": pack({"type": "stats", "id": 0}) + b"\x01",
    "array of a length it has not": b"\xdd\xff\xff\xff\xff",
    "map of a length it has not": b"\xdf\xff\xff\xff\xff",
    "extension": b"\xc7\x05\x01abcde",
    "unknown call": pack({"type": "shutdown", "id": 0}),
    "no type": pack({"id": 0}),
    "type is a number": pack({"type": 3, "id": 0}),
    "reply": pack({"type": "release_reply", "id": 0, "released": True}),
    "id is text": pack({"type": "stats", "id": "0"}),
    "id is a fraction": pack({"type": "stats", "id": 0.5}),
    "no id": pack({"type": "stats"}),
    "not utf-8": b"\x83\xa4type\xa5renew\xa2id\x00\xa8lease_id\xa2\xff\xfe",
}


@pytest.mark.parametrize("payload", GARBAGE.values(), ids=GARBAGE)
@pytest.mark.parametrize("hello", [True, False])
def test_a_frame_that_is_no_call_is_answered_and_the_connection_goes_on(worker, payload, hello):
    with worker.raw(hello=hello) as client:
        client.send_payload(payload)
        reply = client.receive()
        assert isinstance(reply, wire.ErrorReply)
        assert reply.code in ("malformed_frame", "invalid_request")
        assert reply.id == 0
        assert client.call(wire.Hello(id=5, protocol_version=1)).id == 5


WRONG = {
    "prompts of a wrong type": {"type": "forward", "prompt_token_ids": "abc"},
    "fractions as token ids": {"type": "forward", "prompt_token_ids": [[1.5]]},
    "true as a token id": {"type": "forward", "prompt_token_ids": [[True]]},
    "too many prompts": {"type": "forward", "prompt_token_ids": [[1]] * 4097},
    "no prompts": {"type": "forward"},
    "both kinds": {"type": "forward", "prompts": ["a"], "prompt_token_ids": [[1]]},
    "ttl 0": {"type": "forward", "prompt_token_ids": [[1]], "lease_ttl_s": 0},
    "ttl below 1": {"type": "forward", "prompt_token_ids": [[1]], "lease_ttl_s": 0.999},
    "ttl above 600": {"type": "forward", "prompt_token_ids": [[1]], "lease_ttl_s": 600.5},
    "ttl not a number": {"type": "forward", "prompt_token_ids": [[1]], "lease_ttl_s": float("nan")},
    "ttl infinite": {"type": "forward", "prompt_token_ids": [[1]], "lease_ttl_s": float("inf")},
    "ttl null": {"type": "hold", "lease_id": "x", "lease_ttl_s": None},
    "deadline 0": {"type": "forward", "prompt_token_ids": [[1]], "deadline_s": 0},
    "deadline not a number": {"type": "forward", "prompt_token_ids": [[1]], "deadline_s": float("nan")},
    "client too long": {"type": "forward", "prompt_token_ids": [[1]], "client": "c" * 129},
    "lease id a number": {"type": "release", "lease_id": 3},
    "read from before the rows": {"type": "read", "lease_id": "x", "offset": -1},
    "read too much": {"type": "read", "lease_id": "x", "max_bytes": 1 << 30},
    "unknown topic": {"type": "subscribe", "topics": ["everything"]},
    "no topic": {"type": "subscribe", "topics": []},
}


@pytest.mark.parametrize("call", WRONG.values(), ids=WRONG)
def test_a_call_with_a_wrong_value_is_refused_under_its_id(worker, call):
    with worker.raw() as client:
        client.send_payload(pack({"id": 77} | call))
        reply = client.receive()
        assert (reply.id, reply.code) in ((77, "invalid_request"), (77, "empty_prompt"))


@pytest.mark.parametrize(
    ("prompts", "code", "field"),
    [
        ([[]], "empty_prompt", "prompt_token_ids.0"),
        ([[1], [320]], "token_out_of_range", "prompt_token_ids.1"),
        ([[-1]], "token_out_of_range", "prompt_token_ids.0"),
        ([[2**63 - 1]], "token_out_of_range", "prompt_token_ids.0"),
        ([[1] * 257], "prompt_too_long", "prompt_token_ids.0"),
        ([[1] * 256] * 5, "prompts_exceed_slab", None),
    ],
)
def test_prompts_that_cannot_run_are_named(worker, prompts, code, field):
    with worker.raw() as client:
        reply = client.call(wire.Forward(id=3, prompt_token_ids=prompts))
        assert (reply.code, reply.field, reply.retry_after_s) == (code, field, None)
        assert reply.detail.endswith(".")


@pytest.mark.parametrize("request_id", [-1, -(2**63), 0, 2**63, 2**64 - 1])
def test_any_whole_number_is_an_id(worker, request_id):
    with worker.raw() as client:
        assert client.call(wire.Stats(id=request_id)).id == request_id
        reply = client.call(wire.Forward(id=request_id, prompt_token_ids=[[1]]))
        assert (reply.id, len(reply.leases)) == (request_id, 1)


CALLS = [
    wire.Describe(id=4),
    wire.Forward(id=4, prompt_token_ids=[[1]]),
    wire.Cancel(id=4, request_id=1),
    wire.Hold(id=4, lease_id="x"),
    wire.Release(id=4, lease_id="x"),
    wire.Renew(id=4, lease_id="x"),
    wire.Read(id=4, lease_id="x"),
    wire.Subscribe(id=4, topics=["steps"]),
    wire.Stats(id=4),
]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: type(call).__name__)
def test_hello_comes_first(worker, call):
    with worker.raw(hello=False) as client:
        assert client.call(call).code == "hello_first"


@pytest.mark.parametrize("version", [0, 2, -1, 2**63])
def test_another_protocol_version_is_refused(worker, version):
    with worker.raw(hello=False) as client:
        reply = client.call(wire.Hello(id=1, protocol_version=version))
        assert reply.code == "protocol_unsupported"
        assert "version 1" in reply.detail
        assert client.call(wire.Stats(id=2)).code == "hello_first"


def test_random_bytes_never_hurt(unharmed):
    source = random.Random(5)
    for _ in range(200):
        with unharmed.raw(hello=source.random() < 0.5) as client:
            payload = source.randbytes(source.randint(0, 400))
            client.sock.sendall(frame(payload) if source.random() < 0.7 else payload)


def test_calls_cut_anywhere_are_put_together_again(worker):
    data = frame(wire.encode(wire.Stats(id=1))) + frame(
        wire.encode(wire.Forward(id=2, prompt_token_ids=[[1]]))
    )
    with worker.raw() as client:
        for at in range(len(data)):
            client.sock.sendall(data[at : at + 1])
        assert [client.receive().id, client.receive().id] == [1, 2]


def test_a_connection_cut_in_mid_frame_leaves_nothing(unharmed):
    data = frame(wire.encode(wire.Forward(id=1, prompt_token_ids=[[1] * 200])))
    for length in range(1, len(data), 7):
        with unharmed.raw() as client:
            client.sock.sendall(data[:length])


def flood(client: RawClient, data: bytes) -> None:
    """Sends until the worker takes no more, without reading; the worker must stop taking."""
    client.sock.settimeout(1)
    try:
        client.sock.sendall(data)
    except TimeoutError:
        return


@pytest.mark.parametrize(
    ("call", "count"),
    [
        (wire.Stats(id=1), 100_000),
        (wire.Describe(id=1), 100_000),
        (wire.Release(id=1, lease_id="x" * 32), 50_000),
        (wire.Subscribe(id=1, topics=["state"]), 10_000),
        (wire.Cancel(id=1, request_id=1), 50_000),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, wire.Request) else "",
)
def test_calls_whose_answers_nobody_reads_fill_no_memory(unharmed, call, count):
    before = unharmed.resident_bytes()
    with unharmed.raw() as client, unharmed.attach() as region:
        flood(client, frame(wire.encode(call)) * count)
        began = time.monotonic()
        for _ in range(20):
            [lease] = region.forward([[1, 2, 3]])
            lease.release()
        assert time.monotonic() - began < 10
        assert unharmed.resident_bytes() - before < 48 << 20


def test_reads_whose_answers_nobody_reads_fill_no_memory(unharmed):
    """A few bytes ask for much: this is how memory would be filled most cheaply."""
    with unharmed.raw() as client, unharmed.attach() as region:
        reply = client.call(wire.Forward(id=1, prompt_token_ids=[[1] * 256] * 3))
        lease_id = reply.leases[0].lease_id
        before = unharmed.resident_bytes()
        reads = [frame(wire.encode(wire.Read(id=2 + i, lease_id=lease_id))) for i in range(20_000)]
        flood(client, b"".join(reads))
        for _ in range(20):
            [lease] = region.forward([[1, 2, 3]])
            lease.release()
        assert unharmed.resident_bytes() - before < 48 << 20


def test_pipelined_calls_are_all_answered(worker):
    """10 000 calls in one go, by one who reads: every answer comes."""
    with worker.raw() as client:
        calls = [wire.Stats(id=i) if i % 3 else wire.Cancel(id=i, request_id=-1) for i in range(10_000)]
        data = b"".join(frame(wire.encode(call)) for call in calls)
        sender = threading.Thread(target=client.sock.sendall, args=(data,))
        sender.start()
        assert [client.receive().id for _ in calls] == list(range(10_000))
        sender.join()


def test_more_forwards_at_once_than_a_connection_may_have(worker):
    with worker.raw() as client, worker.raw() as other:
        count = MAX_CALLS_IN_FLIGHT + 200
        client.send(*[wire.Forward(id=i, prompt_token_ids=[[i % 256]]) for i in range(count)])
        replies = [client.receive() for _ in range(count)]
        assert sorted(reply.id for reply in replies) == list(range(count))
        refused = [reply for reply in replies if isinstance(reply, wire.ErrorReply)]
        assert {reply.code for reply in refused} <= {"overloaded", "slab_full"}
        assert all(reply.retry_after_s > 0 for reply in refused)
        assert len(refused) < count / 2
        assert other.call(wire.Stats(id=1)).forwards >= count - len(refused)


def test_a_call_id_in_use_is_refused(worker):
    with worker.raw() as client:
        client.send(*[wire.Forward(id=9, prompt_token_ids=[[1] * 200]) for _ in range(3)])
        kinds = sorted(type(client.receive()).__name__ for _ in range(3))
        assert kinds in (
            ["ErrorReply", "ErrorReply", "ForwardReply"],
            ["ErrorReply", "ForwardReply", "ForwardReply"],
        )


@pytest.mark.parametrize("count", [1, 2, 3, 100])
def test_descriptors_that_are_sent_to_the_worker_are_dropped(unharmed, count):
    before = unharmed.descriptors()
    pairs = [os.pipe() for _ in range(count)]
    call = frame(wire.encode(wire.Stats(id=1)))
    with unharmed.raw() as client:
        socket.send_fds(client.sock, [call], [write for _, write in pairs])
        for _, write in pairs:
            os.close(write)
        assert isinstance(client.receive(), wire.StatsReply)
        for read, _ in pairs:
            assert os.read(read, 1) == b""  # the worker kept no copy of the writing end
            os.close(read)
        assert unharmed.descriptors() <= before + 1


def test_a_thousand_connections(unharmed):
    """Those beyond the limit are hung up on; those who are in are served; room that is given back is used."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(1000, soft - 100)
    assert count > MAX_CONNECTIONS, "the limit of open files is too low for this test"
    with unharmed.attach() as region:
        clients = [unharmed.raw(hello=False) for _ in range(count)]
        [lease] = region.forward([[1, 2, 3]])
        lease.release()
        served = refused = 0
        for client in clients:
            try:
                answer = client.call(wire.Hello(id=1, protocol_version=1))
            except OSError:
                answer = None
            served += answer is not None
            refused += answer is None
            client.close()
            # More than the limit may be served one after another, for who is silent for long makes room: never at once.
            stats = region.connection.call(wire.Stats(id=0), wire.StatsReply, Deadline(30))
            assert stats.connections <= MAX_CONNECTIONS
        assert refused > 0
        assert served > 0
        assert served + refused == count
    unharmed.wait_idle()


def test_half_closed_connections_end(unharmed):
    with unharmed.raw() as client:
        client.sock.shutdown(socket.SHUT_WR)
        assert client.receive() is None
    with unharmed.raw() as client, unharmed.attach() as region:
        client.sock.shutdown(socket.SHUT_RD)
        client.send(wire.Stats(id=1))
        with pytest.raises(OSError):  # noqa: PT011 - broken pipe or reset, as the kernel likes
            wait_until(lambda: client.send(wire.Stats(id=1)), 10)
        assert region.forward([[1]])


def test_those_who_never_say_hello_or_never_finish_a_frame_are_hung_up_on(tmp_path):
    """A slow client costs a connection for a while only; a slow one that keeps finishing frames is welcome."""
    patience = Patience(hello_s=0.3, frame_s=0.6, every_s=0.05)

    def client(path, hello):
        return RawClient(path, hello=hello, timeout_s=20)

    async def scenario():
        path = tmp_path / "slow.sock"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(path))
        listener.listen()
        server = Server(patience)
        server.listen(listener)
        silent = await asyncio.to_thread(client, path, False)
        slow = await asyncio.to_thread(client, path, True)
        steady = await asyncio.to_thread(client, path, True)
        call = frame(wire.encode(wire.Stats(id=1)))
        slow.sock.sendall(call[:3])
        steady.sock.sendall(call[:5])
        until = time.monotonic() + 1.2
        while time.monotonic() < until:
            steady.sock.sendall(
                call[5:] + call[:5]
            )  # always in the midst of a frame, yet each is finished soon
            await asyncio.sleep(0.05)
        assert await asyncio.to_thread(silent.receive) is None
        assert await asyncio.to_thread(slow.receive) is None
        assert isinstance(await asyncio.to_thread(steady.receive), wire.StatsReply)
        for one in (silent, slow, steady):
            one.close()
        server.close()

    asyncio.run(scenario())
