import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.transport.errors import FrameError
from app.transport.frames import MAX_FRAME_BYTES, FrameDecoder, frame


@given(st.lists(st.binary(max_size=300), max_size=20), st.data())
def test_any_chunking_gives_the_same_payloads(payloads, data):
    stream = b"".join(frame(payload) for payload in payloads)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=30)))
    decoder = FrameDecoder()
    received = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        received += decoder.feed(stream[start:end])
    assert received == payloads
    assert decoder.pending_bytes == 0


@given(st.binary(max_size=200))
def test_random_bytes_only_ever_raise_frame_error(noise):
    decoder = FrameDecoder()
    try:
        for payload in decoder.feed(noise):
            assert len(payload) <= len(noise)
    except FrameError:
        pass
    assert decoder.pending_bytes <= len(noise)


def test_largest_frame_passes():
    payload = bytes(MAX_FRAME_BYTES)
    assert list(FrameDecoder().feed(frame(payload))) == [payload]


def test_oversize_is_refused_on_both_sides_before_anything_is_allocated():
    too_long = (MAX_FRAME_BYTES + 1).to_bytes(4, "little")
    tracemalloc.start()
    try:
        with pytest.raises(FrameError, match="over the limit"):
            list(FrameDecoder().feed(too_long))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    with pytest.raises(FrameError, match="over the limit"):
        frame(bytes(MAX_FRAME_BYTES + 1))


def test_an_announced_frame_takes_memory_only_as_it_arrives():
    decoder = FrameDecoder()
    tracemalloc.start()
    try:
        assert list(decoder.feed(MAX_FRAME_BYTES.to_bytes(4, "little") + b"x" * 10)) == []
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_frames_before_a_bad_one_are_delivered():
    received = []
    with pytest.raises(FrameError):
        received.extend(FrameDecoder().feed(frame(b"good") + b"\xff\xff\xff\xff"))
    decoder = FrameDecoder()
    stream = decoder.feed(frame(b"good") + b"\xff\xff\xff\xff")
    assert next(stream) == b"good"
    with pytest.raises(FrameError):
        next(stream)
