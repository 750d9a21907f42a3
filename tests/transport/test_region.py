import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.transport.region import (
    DTYPE_BYTES,
    HUGE_PAGE_BYTES,
    RawHandle,
    RegionDescriptor,
    RegionDevice,
    slot_bytes_for,
)

GOOD = {
    "format_version": 1,
    "epoch": "0123456789abcdef" * 2,
    "kind": "memfd",
    "raw_handle": None,
    "byte_size": 8 << 20,
    "base_offset": 0,
    "device": RegionDevice(uuid=None, ordinal=0),
    "slots": 4,
    "slot_bytes": 2 << 20,
    "rows_per_slot": 64,
    "row_bytes": 1280,
    "dtype": "bfloat16",
    "width": 640,
    "control_byte_size": 4096,
    "exporter_pid": 1,
}
REGION = RegionDescriptor(**GOOD)
ANY_INT = st.integers(-(2**70), 2**70)


def test_a_sound_descriptor_passes():
    REGION.validate()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format_version": 2}, "update the reader"),
        ({"epoch": "short"}, "epoch"),
        ({"epoch": "Z" * 32}, "epoch"),
        ({"dtype": "complex64"}, "unknown"),
        ({"row_bytes": 1281}, "width"),
        ({"width": 0, "row_bytes": 0}, "at least 1"),
        ({"slots": 0}, "at least 1"),
        ({"rows_per_slot": 0}, "at least 1"),
        ({"base_offset": 1}, "aligned"),
        ({"base_offset": 2}, "beyond"),
        ({"rows_per_slot": 2000}, "smaller than its rows"),
        ({"slots": 5}, "beyond"),
        ({"kind": "cuda_ipc"}, "raw_handle"),
        ({"raw_handle": RawHandle.of(bytes(64))}, "raw_handle"),
    ],
)
def test_contradictions_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        RegionDescriptor(**(GOOD | change)).validate()


def test_negative_and_huge_sizes_do_not_decode():
    for value in (-1, 2**62 + 1):
        packed = msgspec.json.encode(GOOD | {"byte_size": value})
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(packed, type=RegionDescriptor)


def test_json_names_are_the_contracts():
    shown = json.loads(msgspec.json.encode(REGION))
    assert list(shown) == list(GOOD)
    assert shown["device"] == {"uuid": None, "ordinal": 0}


@given(slot=ANY_INT, byte_offset=ANY_INT, byte_size=ANY_INT, num_tokens=ANY_INT)
def test_rows_that_pass_lie_in_their_slot(slot, byte_offset, byte_size, num_tokens):
    try:
        REGION.check_rows(slot=slot, byte_offset=byte_offset, byte_size=byte_size, num_tokens=num_tokens)
    except ValueError:
        return
    assert 0 <= slot < REGION.slots
    assert (
        slot * REGION.slot_bytes <= byte_offset <= byte_offset + byte_size <= (slot + 1) * REGION.slot_bytes
    )


@given(slot=st.integers(0, 3), first=st.integers(0, 64), data=st.data())
def test_every_range_of_whole_rows_passes_and_its_neighbours_do_not(slot, first, data):
    count = data.draw(st.integers(0, 64 - first))
    start = slot * REGION.slot_bytes + first * 1280
    REGION.check_rows(slot=slot, byte_offset=start, byte_size=count * 1280, num_tokens=count)
    for change in (
        {"byte_offset": start + 2},
        {"num_tokens": count + 1},
        {"byte_size": count * 1280 + 1280},
        {"num_tokens": 65, "byte_size": 65 * 1280},
    ):
        rows = {"slot": slot, "byte_offset": start, "byte_size": count * 1280, "num_tokens": count}
        with pytest.raises(ValueError, match=r"rows|byte_size"):
            REGION.check_rows(**(rows | change))


def test_raw_handles_have_64_bytes():
    handle = bytes(range(64))
    assert RawHandle.of(handle).to_bytes() == handle
    with pytest.raises(ValueError, match="64"):
        RawHandle.of(b"short")
    with pytest.raises(ValueError, match="64"):
        RawHandle(b64="AAAA").to_bytes()
    with pytest.raises(ValueError, match="base64"):
        RawHandle(b64="!!!!").to_bytes()


@given(st.integers(1, 10**6), st.integers(1, 10**5))
def test_slots_hold_their_rows_in_whole_huge_pages(rows, row_bytes):
    size = slot_bytes_for(rows, row_bytes)
    assert size % HUGE_PAGE_BYTES == 0
    assert 0 <= size - rows * row_bytes < HUGE_PAGE_BYTES


def test_dtype_sizes_are_pytorchs():
    torch = pytest.importorskip("torch")
    for name, size in DTYPE_BYTES.items():
        assert getattr(torch, name).itemsize == size
