"""Shapes of ``/v1/target`` and ``/v1/hidden-states`` at the REST border."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, StrictFloat, StrictInt, StrictStr, model_validator

from .schemas import RequestModel

TokenIds: TypeAlias = Annotated[list[StrictInt], Field(description="One prompt as token ids")]
LeaseTtl: TypeAlias = Annotated[StrictInt | StrictFloat, Field(ge=1, le=600)]
_TTL = "Seconds until the lease ends, counted from the answer on"


class HiddenStatesRequest(RequestModel):
    """Prompts whose hidden states to compute; exactly one of the two prompt fields."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"prompt_token_ids": [[1, 2, 3]], "lease_ttl_s": 30},
                {"prompts": ["The capital of France is"]},
            ]
        }
    )
    prompt_token_ids: Annotated[list[TokenIds], Field(min_length=1, max_length=4096)] | None = Field(
        None, description="The prompts as token ids of the target"
    )
    prompts: Annotated[list[StrictStr], Field(min_length=1, max_length=4096)] | None = Field(
        None, description="The prompts as text, where the target has a tokenizer"
    )
    lease_ttl_s: LeaseTtl = Field(30, description=_TTL)

    @model_validator(mode="after")
    def _exactly_one(self) -> HiddenStatesRequest:
        if (self.prompt_token_ids is None) == (self.prompts is None):
            raise ValueError("give exactly one of prompt_token_ids and prompts")
        return self


class RenewRequest(RequestModel):
    """How long the lease is to live from now on."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"lease_ttl_s": 60}]})
    lease_ttl_s: LeaseTtl = Field(30, description=_TTL)


class LeaseDoc(BaseModel):
    """Rows of one prompt in the slab."""

    lease_id: str = Field(description="Random, 32 hexadecimal digits")
    index: int = Field(description="Which of the request's prompts, counted from 0")
    slot: int = Field(description="Slot of the slab, counted from 0")
    sequence: int = Field(
        description="Of the slot when the rows were written; another one now: they are gone"
    )
    row_start: int = Field(description="First row within the slot")
    num_tokens: int = Field(description="Rows: one for every token of the prompt, in its order")
    byte_offset: int = Field(description="From the region's base_offset")
    byte_size: int = Field(description="Of all rows")
    shape: list[int] = Field(description="Sizes of the axes", examples=[[6, 640]])
    axes: list[str] = Field(description="Names of the axes", examples=[["token", "hidden"]])
    dtype: str = Field(description="Of the rows", examples=["bfloat16"])
    token_ids: list[int] = Field(description="The prompt as the target saw it")
    expires_at: str = Field(description="RFC 3339, UTC; for people: the deadline itself is monotonic")


class HiddenStatesAnswerDoc(BaseModel):
    """Leases of all prompts."""

    epoch: str = Field(description="Of the worker; another one later means that these leases are gone")
    leases: list[LeaseDoc] = Field(description="One for each prompt, in their order")


class LeaseAnswerDoc(BaseModel):
    """One lease."""

    epoch: str = Field(description="Of the worker")
    lease: LeaseDoc = Field(description="The lease with its new deadline")


class DeviceDoc(BaseModel):
    """Where the target runs."""

    type: Literal["cpu", "cuda"] = Field(description="Kind of device")
    uuid: str | None = Field(
        description="Of a GPU: what readers find it by, whatever its ordinal is for them"
    )
    name: str = Field(description="What the driver calls it")


class HiddenStatesLayoutDoc(BaseModel):
    """What one row holds."""

    source: Literal["final", "aux_layers", "pre_hc_head"] = Field(description="Where rows are taken from")
    layer_ids: list[int] | None = Field(description="As asked for, in the drafter's own convention")
    capture_points: list[int] | None = Field(
        description="Point L is the residual stream entering decoder layer L, in the order asked for"
    )
    norm: Literal["pre", "post"] | None = Field(description="Before or after the final norm")
    width: int = Field(description="Elements of a row")
    dtype: str = Field(description="Of the elements")
    bytes_per_token: int = Field(description="Bytes of a row")
    rows: int = Field(description="Rows of a slot: `max_num_batched_tokens`")
    buffer_bytes: int = Field(description="Bytes of a slot's rows")


class TargetDoc(BaseModel):
    """The held model."""

    model: str = Field(description="Hub id, or directory as far as callers may know it")
    revision: str | None = Field(description="Commit of a hub id, else null")
    architecture: str = Field(description="Class of the model in transformers")
    dtype: str = Field(description="Of its weights")
    hidden_size: int = Field(description="Width of its residual stream")
    num_hidden_layers: int = Field(description="Its decoder layers")
    vocab_size: int = Field(description="Rows of its embedding: token ids are below")
    max_num_batched_tokens: int = Field(description="Tokens of a step, and of the longest prompt")
    device: DeviceDoc = Field(description="Where it runs")
    hidden_states: HiddenStatesLayoutDoc = Field(description="What one row of a lease holds")
    has_tokenizer: bool = Field(description="Whether prompts may be given as text")


class RegionDoc(BaseModel):
    """How a process on the same machine maps the slab."""

    format_version: int = Field(description="Of this descriptor")
    epoch: str = Field(description="Random, new at every start of the worker")
    kind: Literal["cuda_ipc", "memfd"] = Field(description="A CUDA allocation, or a sealed memory file")
    raw_handle: dict[str, str] | None = Field(
        description="CUDA IPC handle in base64 under `b64`: write access to the slab; null for `memfd`"
    )
    byte_size: int = Field(description="Of the whole slab")
    base_offset: int = Field(description="Where slot 0 begins")
    device: dict[str, Any] = Field(description="The GPU's `uuid` and `ordinal`, both null on the CPU")
    slots: int = Field(description="Number of slots")
    slot_bytes: int = Field(description="From the beginning of one slot to that of the next")
    rows_per_slot: int = Field(description="Rows of a slot")
    row_bytes: int = Field(description="From the beginning of one row to that of the next")
    dtype: str = Field(description="Of the elements")
    width: int = Field(description="Elements of a row")
    control_byte_size: int = Field(description="Of the control page that the socket passes")
    exporter_pid: int = Field(description="The worker, in its own pid namespace")
