import contextlib
import inspect

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.transport import messages as wire
from app.transport.region import RawHandle, RegionDescriptor, RegionDevice

DESCRIPTOR = RegionDescriptor(
    format_version=1,
    epoch="ab" * 16,
    kind="cuda_ipc",
    raw_handle=RawHandle.of(bytes(64)),
    byte_size=2 << 20,
    base_offset=0,
    device=RegionDevice(uuid="GPU-1", ordinal=0),
    slots=1,
    slot_bytes=2 << 20,
    rows_per_slot=8,
    row_bytes=16,
    dtype="bfloat16",
    width=8,
    control_byte_size=4096,
    exporter_pid=1,
)
LEASE = wire.LeaseDescriptor(
    lease_id="0" * 32,
    index=0,
    slot=0,
    sequence=2,
    row_start=0,
    num_tokens=1,
    byte_offset=0,
    byte_size=16,
    shape=[1, 8],
    axes=["token", "hidden"],
    dtype="bfloat16",
    token_ids=[7],
    expires_at="2030-01-01T00:00:00Z",
    expires_in_s=1.5,
)
STATE = wire.WorkerState(
    state="loading", detail="reading weights", progress=wire.Progress(bytes_loaded=1, bytes_total=2)
)
LAYOUT = wire.HiddenStatesLayout(
    source="aux_layers",
    layer_ids=[1],
    capture_points=[2],
    norm="pre",
    width=8,
    dtype="bfloat16",
    bytes_per_token=16,
    rows=8,
    buffer_bytes=128,
)
TARGET = wire.TargetDescription(
    model="m",
    revision=None,
    architecture="A",
    dtype="bfloat16",
    hidden_size=8,
    num_hidden_layers=2,
    vocab_size=9,
    max_num_batched_tokens=8,
    device=wire.DeviceInfo(type="cpu", uuid=None, name="x"),
    hidden_states=LAYOUT,
    has_tokenizer=True,
)
VALUES = {
    "protocol_version": 1,
    "client_name": "me",
    "prompt_token_ids": [[1, 2], []],
    "prompts": None,
    "lease_ttl_s": 2.0,
    "deadline_s": 0.5,
    "client": "c",
    "request_id": 4,
    "lease_id": "0" * 32,
    "offset": 3,
    "max_bytes": 5,
    "topics": ["steps"],
    "epoch": "ab" * 16,
    "worker_pid": 9,
    "state": STATE,
    "region": DESCRIPTOR,
    "target": TARGET,
    "leases": [LEASE],
    "lease": LEASE,
    "released": True,
    "cancelled": False,
    "byte_size": 16,
    "data": b"\x00\xff",
    "missed": 2,
    "code": "slab_full",
    "detail": "wait",
    "retry_after_s": 0.5,
    "field": "prompts.0",
    "step_seconds_total": 0.25,
}


def structs_of(base):
    found = [t for _, t in inspect.getmembers(wire, inspect.isclass) if issubclass(t, base) and t is not base]
    assert len(found) >= 10
    return found


def example(kind):
    values = (
        {} if kind is wire.StatsReply else VALUES
    )  # counters only, one of them named like a list elsewhere
    return kind(**{name: values.get(name, 11) for name in kind.__struct_fields__})


@pytest.mark.parametrize("kind", structs_of(wire.Request))
def test_requests_round_trip(kind):
    assert wire.decode_request(wire.encode(example(kind))) == example(kind)


@pytest.mark.parametrize("kind", structs_of(wire.Reply))
def test_replies_round_trip(kind):
    assert wire.decode_reply(wire.encode(example(kind))) == example(kind)


def test_every_request_has_an_answer():
    assert set(wire.REPLY_OF) == set(structs_of(wire.Request))


def test_unknown_fields_are_ignored_and_unknown_calls_are_not():
    packed = msgspec.msgpack.encode({"type": "stats", "id": 5, "added_in_version_9": 1})
    assert wire.decode_request(packed) == wire.Stats(id=5)
    with pytest.raises(msgspec.ValidationError):
        wire.decode_request(msgspec.msgpack.encode({"type": "reboot", "id": 5}))


@pytest.mark.parametrize(
    "fields",
    [
        {"type": "forward", "lease_ttl_s": 0.5},
        {"type": "forward", "lease_ttl_s": 601},
        {"type": "forward", "prompt_token_ids": [[1.5]]},
        {"type": "forward", "prompt_token_ids": [[]] * (wire.MAX_PROMPTS + 1)},
        {"type": "forward", "deadline_s": 0},
        {"type": "read", "lease_id": "x", "offset": -1},
        {"type": "read", "lease_id": "x", "max_bytes": wire.READ_CHUNK_BYTES + 1},
        {"type": "subscribe", "topics": []},
        {"type": "subscribe", "topics": ["weather"]},
        {"type": "hello", "protocol_version": 1, "client_name": "x" * 129},
    ],
)
def test_values_out_of_bounds_are_refused(fields):
    with pytest.raises(msgspec.ValidationError):
        wire.decode_request(msgspec.msgpack.encode({"id": 1} | fields))


@given(st.binary(max_size=300))
def test_fuzzed_bytes_only_raise_decode_errors(noise):
    for decode in (wire.decode_request, wire.decode_reply):
        with contextlib.suppress(msgspec.DecodeError):
            decode(noise)
    assert isinstance(wire.request_id_of(noise), int)


@given(st.integers(0, 2**20), st.data())
def test_damaged_messages_only_raise_decode_errors(seed, data):
    kinds = structs_of(wire.Request)
    packed = bytearray(wire.encode(example(kinds[seed % len(kinds)])))
    for _ in range(data.draw(st.integers(1, 4))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(msgspec.DecodeError):
        wire.decode_request(bytes(packed))
    assert isinstance(wire.request_id_of(bytes(packed)), int)


def test_deep_nesting_is_a_decode_error_too():
    packed = msgspec.msgpack.encode({"type": "stats", "id": 1, "unknown": None})[:-1]
    deep = packed + b"\x91" * 200_000 + b"\xc0"
    for decode in (wire.decode_request, wire.decode_reply):
        with pytest.raises(msgspec.DecodeError):
            decode(deep)
    assert wire.request_id_of(deep) == 0


def test_request_id_of_a_malformed_request():
    assert wire.request_id_of(msgspec.msgpack.encode({"type": "reboot", "id": 77})) == 77
    assert wire.request_id_of(msgspec.msgpack.encode({"type": "forward", "id": 78, "lease_ttl_s": "x"})) == 78
    assert wire.request_id_of(msgspec.msgpack.encode({"id": "x"})) == 0
    assert wire.request_id_of(b"") == 0
