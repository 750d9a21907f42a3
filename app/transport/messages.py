"""The normative schema of the worker's socket: one msgspec struct per message, tagged by its call name.

A client sends requests, each with an ``id`` of its own choice; the worker answers with a reply or an ``error`` that
carries the same ``id``, in any order. ``subscribe`` is answered once and then followed by events under its ``id``.
Unknown fields are ignored, so that either side may be the newer one; unknown calls get an ``error``.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from .region import RegionDescriptor

PROTOCOL_VERSION = 1

LeaseTtl: TypeAlias = Annotated[float, Meta(ge=1, le=600)]
TokenId: TypeAlias = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
MAX_PROMPTS = 4096
READ_CHUNK_BYTES = 4 << 20

WorkerStateName: TypeAlias = Literal[
    "disabled", "starting", "loading", "ready", "restarting", "stopping", "failed"
]


class Progress(Struct, frozen=True):
    """How far loading has come, in bytes of weights."""

    bytes_loaded: int
    bytes_total: int


class WorkerState(Struct, frozen=True):
    """What the worker is doing; ``detail`` is one sentence for people."""

    state: WorkerStateName
    detail: str | None = None
    progress: Progress | None = None


class DeviceInfo(Struct, frozen=True):
    """Where the target runs. ``uuid`` is the GPU's (``GPU-...``), ``None`` on a CPU."""

    type: Literal["cpu", "cuda"]
    uuid: str | None
    name: str


class HiddenStatesLayout(Struct, frozen=True):
    """What one row holds.

    ``layer_ids`` are in the drafter's own convention, ``capture_points`` in the contract's (the stream that enters
    decoder layer L). ``rows`` x ``bytes_per_token`` = ``buffer_bytes``. ``norm`` says whether the final norm was
    applied (``post``), not (``pre``), or cannot be said (``None``).
    """

    source: Literal["final", "aux_layers", "pre_hc_head"]
    layer_ids: list[int] | None
    capture_points: list[int] | None
    norm: Literal["pre", "post"] | None
    width: int
    dtype: str
    bytes_per_token: int
    rows: int
    buffer_bytes: int


class TargetDescription(Struct, frozen=True):
    """The held model, as ``GET /v1/target`` shows it."""

    model: str
    revision: str | None
    architecture: str
    dtype: str
    hidden_size: int
    num_hidden_layers: int
    vocab_size: int
    max_num_batched_tokens: int
    device: DeviceInfo
    hidden_states: HiddenStatesLayout
    has_tokenizer: bool


class LeaseDescriptor(Struct, frozen=True):
    """Rows of one prompt in the slab.

    ``byte_offset`` is absolute from the region's ``base_offset``; ``shape`` is ``[num_tokens, width]``;
    ``sequence`` is the slot's even seqlock word for which the rows are valid. ``expires_in_s`` counts from the
    moment the worker answered, on a monotonic clock; ``expires_at`` (RFC 3339, UTC) is for people.
    """

    lease_id: str
    index: int
    slot: int
    sequence: int
    row_start: int
    num_tokens: int
    byte_offset: int
    byte_size: int
    shape: list[int]
    axes: list[str]
    dtype: str
    token_ids: list[int]
    expires_at: str
    expires_in_s: float = 0.0


class Request(Struct, kw_only=True):
    """Base of all requests."""

    id: int


class Hello(Request, tag="hello"):
    """First message of a connection. A version that the worker does not speak gets ``protocol_unsupported``."""

    protocol_version: int
    client_name: Annotated[str, Meta(max_length=128)] = ""


class Describe(Request, tag="describe"):
    """Asks for the region and the target. The reply passes the descriptors [control page, slab if memfd]."""


class Forward(Request, tag="forward"):
    """Runs prompts and leases their rows to this connection; exactly one of the two prompt fields is set.

    ``deadline_s``: give up when the rows are not there after that many seconds (``None``: wait).
    ``client``: whose share of the queue this is, where one connection speaks for many (the API process).
    """

    prompt_token_ids: Annotated[list[list[TokenId]], Meta(max_length=MAX_PROMPTS)] | None = None
    prompts: Annotated[list[str], Meta(max_length=MAX_PROMPTS)] | None = None
    lease_ttl_s: LeaseTtl = 30.0
    deadline_s: Annotated[float, Meta(gt=0)] | None = None
    client: Annotated[str, Meta(max_length=128)] = ""


class Cancel(Request, tag="cancel"):
    """Gives up the ``forward`` with id ``request_id`` of this connection; that call is answered ``cancelled``."""

    request_id: int


class Hold(Request, tag="hold"):
    """Makes this connection a holder of a lease that somebody else took."""

    lease_id: str
    lease_ttl_s: LeaseTtl = 30.0


class Release(Request, tag="release"):
    """Ends this connection's hold. Releasing twice is no error."""

    lease_id: str


class Renew(Request, tag="renew"):
    """Sets the deadline of this connection's hold anew."""

    lease_id: str
    lease_ttl_s: LeaseTtl = 30.0


class Read(Request, tag="read"):
    """Asks for bytes of a lease's rows: at most ``max_bytes`` from ``offset`` (in bytes) on."""

    lease_id: str
    offset: Annotated[int, Meta(ge=0)] = 0
    max_bytes: Annotated[int, Meta(ge=1, le=READ_CHUNK_BYTES)] = READ_CHUNK_BYTES


class Subscribe(Request, tag="subscribe"):
    """Asks for events: ``state`` (changes of the worker's state), ``steps`` (every published step, latest wins)."""

    topics: Annotated[list[Literal["state", "steps"]], Meta(min_length=1, max_length=2)]
    lease_ttl_s: LeaseTtl = 30.0


class Stats(Request, tag="stats"):
    """Asks for the worker's counters."""


class Reply(Struct, kw_only=True):
    """Base of all replies and events."""

    id: int


class HelloReply(Reply, tag="hello_reply"):
    """Who answered."""

    protocol_version: int
    epoch: str
    worker_pid: int
    state: WorkerState


class DescribeReply(Reply, tag="describe_reply"):
    """The region (its descriptors come along with this frame) and the target in it."""

    region: RegionDescriptor
    target: TargetDescription


class ForwardReply(Reply, tag="forward_reply"):
    """All leases of a ``forward``, in the order of its prompts."""

    epoch: str
    leases: list[LeaseDescriptor]


class LeaseReply(Reply, tag="lease_reply"):
    """Answer to ``hold`` and ``renew``."""

    epoch: str
    lease: LeaseDescriptor


class ReleaseReply(Reply, tag="release_reply"):
    """``released`` is false when this connection no longer held the lease."""

    released: bool


class CancelReply(Reply, tag="cancel_reply"):
    """``cancelled`` is false when the call had already been answered."""

    cancelled: bool


class ReadReply(Reply, tag="read_reply"):
    """``data`` is the part of the lease's ``byte_size`` bytes that starts at ``offset``."""

    offset: int
    byte_size: int
    data: bytes


class SubscribeReply(Reply, tag="subscribe_reply"):
    """The subscription stands; events follow under the same id."""

    state: WorkerState


class StateEvent(Reply, tag="state_event"):
    """The worker's state changed."""

    state: WorkerState


class StepEvent(Reply, tag="step_event"):
    """A step was published. ``missed`` counts the steps since the last event that this subscriber was not told of."""

    epoch: str
    step: int
    missed: int
    leases: list[LeaseDescriptor]


class StatsReply(Reply, tag="stats_reply"):
    """Counters since the worker's start, and gauges of this moment."""

    steps: int
    tokens: int
    prompts: int
    forwards: int
    rejected: int
    cancelled: int
    leases_active: int
    leases_expired: int
    slots_total: int
    slots_leased: int
    queue_depth: int
    queue_tokens: int
    connections: int
    step_seconds_total: float
    rows_capacity_total: int
    device_memory_bytes: int = 0


class ErrorReply(Reply, tag="error"):
    """A call failed; ``code`` is one of REST's."""

    code: str
    detail: str
    retry_after_s: float | None = None
    field: str | None = None


AnyRequest: TypeAlias = (
    Hello | Describe | Forward | Cancel | Hold | Release | Renew | Read | Subscribe | Stats
)
AnyReply: TypeAlias = (
    HelloReply
    | DescribeReply
    | ForwardReply
    | LeaseReply
    | ReleaseReply
    | CancelReply
    | ReadReply
    | SubscribeReply
    | StateEvent
    | StepEvent
    | StatsReply
    | ErrorReply
)

REPLY_OF: dict[type[Request], type[Reply]] = {
    Hello: HelloReply,
    Describe: DescribeReply,
    Forward: ForwardReply,
    Cancel: CancelReply,
    Hold: LeaseReply,
    Release: ReleaseReply,
    Renew: LeaseReply,
    Read: ReadReply,
    Subscribe: SubscribeReply,
    Stats: StatsReply,
}
"""What answers a request that did not fail."""

encode = msgspec.msgpack.Encoder().encode
_decode_request = msgspec.msgpack.Decoder(AnyRequest).decode
_decode_reply = msgspec.msgpack.Decoder(AnyReply).decode


def decode_request(frame: bytes | bytearray | memoryview) -> AnyRequest:
    """The request in a frame; ``msgspec.DecodeError`` for anything else, nested however deeply."""
    try:
        return _decode_request(frame)
    except RecursionError as error:
        raise msgspec.DecodeError("the message is nested too deeply") from error


def decode_reply(frame: bytes | bytearray | memoryview) -> AnyReply:
    """The reply or event in a frame; ``msgspec.DecodeError`` for anything else."""
    try:
        return _decode_reply(frame)
    except RecursionError as error:
        raise msgspec.DecodeError("the message is nested too deeply") from error


class _Envelope(Struct):
    id: int = 0


_decode_envelope = msgspec.msgpack.Decoder(_Envelope).decode


def request_id_of(frame: bytes | bytearray | memoryview) -> int:
    """The ``id`` of a frame that is no valid request, 0 where not even that can be read.

    Lets the worker answer a malformed call under the id that its sender waits for.
    """
    try:
        return _decode_envelope(frame).id
    except (msgspec.DecodeError, RecursionError):
        return 0
