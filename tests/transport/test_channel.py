import os
import socket
import threading

import pytest

from app.transport.channel import PAUSE_ABOVE_BYTES, FrameChannel
from app.transport.errors import FrameError
from app.transport.frames import MAX_FRAME_BYTES, FrameDecoder, frame


class End:
    """A channel that notes what happens to it."""

    def __init__(self, sock, **options):
        self.frames, self.ends = [], []
        self.channel = FrameChannel(sock, self.frames.append, self.ends.append, **options)


def test_frames_of_any_size_arrive_in_order_both_ways(run, eventually):
    async def body():
        left, right = socket.socketpair()
        a, b = End(left), End(right, back_pressure=False)
        payloads = [b"", b"x", os.urandom(3 << 20), b"last"]
        for payload in payloads:
            a.channel.send(payload)
            b.channel.send(payload)
        await eventually(lambda: len(a.frames) == len(b.frames) == 4)
        assert a.frames == b.frames == payloads
        assert a.channel.unsent_bytes == 0
        a.channel.close()
        await eventually(lambda: b.ends)
        assert (a.ends, b.ends) == ([None], [None])

    run(body())


def test_a_peer_that_never_reads_is_no_longer_read_from(run, eventually):
    """What it asks for cannot pile up here, and everybody else is served."""

    async def body():
        ours, theirs = socket.socketpair()
        answered = 0

        def answer(_payload):
            nonlocal answered
            answered += 1
            channel.send(bytes(100_000))

        channel = FrameChannel(ours, answer, lambda _error: None)
        other = [End(sock) for sock in socket.socketpair()]
        theirs.setblocking(False)
        asked = 0
        stuck = 0
        while stuck < 50:
            try:
                theirs.send(frame(b"ask"))
                asked, stuck = asked + 1, 0
            except BlockingIOError:
                stuck += 1
            other[0].channel.send(b"ping")
            await eventually(lambda: len(other[1].frames) == 1)
            other[1].frames.clear()
        assert asked > answered
        # One chunk of requests may have been in hand when the limit was reached.
        chunk = (256 << 10) // len(frame(b"ask"))
        assert channel.unsent_bytes <= PAUSE_ABOVE_BYTES + (chunk + 1) * 100_004

        theirs.setblocking(True)
        drained = threading.Thread(target=drain, args=(theirs, asked))
        drained.start()
        await eventually(lambda: not drained.is_alive())
        assert answered == asked
        theirs.close()
        for each in (channel, other[0].channel, other[1].channel):
            each.close()

    def drain(sock, expected):
        decoder, count = FrameDecoder(), 0
        while count < expected:
            count += sum(1 for _ in decoder.feed(sock.recv(1 << 20)))

    run(body())


def test_two_ends_with_much_to_say_do_not_wait_for_each_other(run, eventually):
    async def body():
        ours, theirs = socket.socketpair()
        worker, client = End(ours), End(theirs, back_pressure=False)
        for _ in range(4):
            worker.channel.send(bytes(4 << 20))
            client.channel.send(bytes(4 << 20))
        await eventually(lambda: len(worker.frames) == len(client.frames) == 4)
        worker.channel.close()
        client.channel.close()

    run(body())


def test_descriptors_travel_with_their_frames(run, eventually, descriptors, tmp_path):
    async def body():
        before = descriptors()
        left, right = socket.socketpair()
        sender, receiver = End(left), End(right, accept_descriptors=True)
        files = [os.open(tmp_path / name, os.O_RDWR | os.O_CREAT) for name in "abc"]
        sender.channel.send(os.urandom(1 << 20))
        sender.channel.send(b"two", files[:2])
        sender.channel.send(b"one", files[2:])
        await eventually(lambda: len(receiver.frames) == 3)
        first, second = receiver.channel.take_descriptors(2), receiver.channel.take_descriptors()
        assert (len(first), len(second)) == (2, 1)
        for ours, theirs in zip(files, first + second, strict=True):
            assert os.fstat(ours).st_ino == os.fstat(theirs).st_ino
            assert not os.get_inheritable(theirs)
            os.close(ours)
            os.close(theirs)
        sender.channel.send(b"not taken", [0, 0])
        await eventually(lambda: len(receiver.frames) == 4)
        sender.channel.close()
        await eventually(lambda: receiver.ends)
        assert descriptors() == before

    run(body())


def test_descriptors_nobody_asked_for_are_dropped(run, eventually, descriptors):
    async def body():
        left, right = socket.socketpair()
        sender, receiver = End(left), End(right)
        before = descriptors()
        for _ in range(20):
            sender.channel.send(b"here", [0, 0])
        await eventually(lambda: len(receiver.frames) == 20)
        assert descriptors() == before
        assert receiver.channel.take_descriptors() == []
        sender.channel.close()
        await eventually(lambda: receiver.ends)

    run(body())


@pytest.mark.parametrize("sent", [[0] * 3, [0]], ids=["too many at once", "never taken"])
def test_a_flood_of_descriptors_ends_the_connection(run, eventually, descriptors, sent):
    async def body():
        left, right = socket.socketpair()
        sender, receiver = End(left), End(right, accept_descriptors=True)
        before = descriptors()
        for _ in range(20):
            sender.channel.send(b"here", sent)
        await eventually(lambda: receiver.ends)
        assert isinstance(receiver.ends[0], FrameError)
        await eventually(lambda: sender.ends or sender.channel.send(b"x"))
        assert descriptors() < before

    run(body())


@pytest.mark.parametrize("noise", [b"\xff\xff\xff\xff", (MAX_FRAME_BYTES + 1).to_bytes(4, "little")])
def test_garbage_ends_the_connection_once(run, eventually, noise):
    async def body():
        left, right = socket.socketpair()
        end = End(left)
        right.sendall(frame(b"good") + noise)
        await eventually(lambda: end.ends)
        end.channel.close()
        end.channel.send(b"into the void")
        assert end.frames == [b"good"]
        assert len(end.ends) == 1
        assert isinstance(end.ends[0], FrameError)
        assert right.recv(10) == b""
        right.close()

    run(body())


def test_a_killed_peer_is_an_end_even_with_bytes_unsent(run, eventually):
    async def body():
        left, right = socket.socketpair()
        end = End(left)
        for _ in range(10):
            end.channel.send(bytes(1 << 20))
        right.close()
        await eventually(lambda: end.ends)
        assert end.channel.unsent_bytes == 0

    run(body())
