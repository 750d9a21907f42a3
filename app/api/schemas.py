"""Shapes of requests and answers at the REST border: they validate what comes in and document what goes out."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictFloat,
    StrictInt,
    StrictStr,
    model_validator,
)

Method: TypeAlias = Literal[
    "dflash", "dflash2", "dspark", "domino", "dflare", "pard", "pard2", "peagle", "eagle", "eagle3", "mtp",
    "medusa", "mlp_speculator", "draft_model", "ngram", "suffix", "extract_hidden_states",
]  # fmt: skip
Text: TypeAlias = Annotated[StrictStr, Field(max_length=4096)]
ModelName: TypeAlias = Annotated[
    StrictStr,
    Field(max_length=4096, description="Hub id `org/name`, or an absolute directory below a model root"),
]
Revision: TypeAlias = Annotated[
    StrictStr, Field(max_length=256, description="Branch, tag or commit of a hub id")
]
Config: TypeAlias = Annotated[dict[str, Any], Field(description="An inline config.json instead of `model`")]
PipelineSize: TypeAlias = Annotated[StrictInt, Field(ge=1, le=65536)]


class RequestModel(BaseModel):
    """Base of request bodies: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


class ModelRef(RequestModel):
    """A model by name or an inline config; exactly one of the two."""

    model: ModelName | None = None
    revision: Revision | None = None
    config: Config | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> ModelRef:
        if (self.model is None) == (self.config is None):
            raise ValueError("give exactly one of model and config")
        if self.revision is not None and self.model is None:
            raise ValueError("revision goes with model only")
        return self


class EngineSpec(RequestModel):
    """An engine and its version, by default the newest known."""

    name: Annotated[StrictStr, Field(max_length=64, examples=["vllm"])]
    version: Annotated[StrictStr, Field(max_length=64, examples=["0.33.0"])] | None = None


Engine: TypeAlias = EngineSpec | Annotated[StrictStr, Field(max_length=130, examples=["vllm==0.33.0"])]


class MaskTokenRequest(ModelRef):
    """Which mask token id will this drafter use?"""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"config": {"dflash_config": {"mask_token_id": 151669}, "vocab_size": 151936}}]
        }
    )
    target: ModelRef | None = Field(None, description="The target, to check the id against its vocabulary")
    engine: Engine | None = None


class LoadConfigRequest(RequestModel):
    """Which load config will the draft model really get?"""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"load_config": {"load_format": "fastsafetensors"}, "pipeline_parallel_size": 2}]
        }
    )
    load_config: dict[str, Any] = Field(description="The target's load config, with vLLM's fields")
    pipeline_parallel_size: PipelineSize
    draft_load_config: dict[str, Any] | None = Field(None, description="The draft's own load config, if any")
    model: ModelName | None = Field(None, description="The draft model, read only to infer `method`")
    revision: Revision | None = None
    config: Config | None = None
    method: Method | None = None
    engine: Engine | None = None

    @model_validator(mode="after")
    def _at_most_one(self) -> LoadConfigRequest:
        if self.model is not None and self.config is not None:
            raise ValueError("give at most one of model and config")
        if self.revision is not None and self.model is None:
            raise ValueError("revision goes with model only")
        return self


class FindingDoc(BaseModel):
    """One thing to know."""

    severity: Literal["error", "warning", "info"]
    code: str
    detail: str
    fields: list[str]
    see: list[str]
    evidence: Literal["read in code", "run by us", "reported", "inferred"]


class CandidateDoc(BaseModel):
    """A place in the config that names an id."""

    source: str
    value: Any
    used: bool


class EngineDoc(BaseModel):
    """The engine that an answer is for."""

    name: str
    version: str | None


class ModelDoc(BaseModel):
    """Which config was read. `id` is null for an inline one, whose hash is that of its canonical JSON."""

    id: str | None
    revision: str | None
    config_sha256: str


class MaskTokenAnswerDoc(BaseModel):
    """The id that the engine reads, and where from."""

    mask_token_id: int
    source: str = Field(description="Place in the raw file")
    translated_from: Literal["speculators", "text_config"] | None
    method: Method | None = Field(description="The drafter's family")
    engine_method: str | None = Field(description="What the engine wants to be told; null where it refuses")
    engine: EngineDoc
    token: str | None = Field(description="The token's text, where a tokenizer is at hand")
    candidates: list[CandidateDoc]
    findings: list[FindingDoc]
    model: ModelDoc


class LoadConfigAnswerDoc(BaseModel):
    """The load configs of target and draft."""

    target: dict[str, Any]
    draft: dict[str, Any]
    changed: list[str]
    reason: Literal["pp_collective_loader", "ipc_cache_draft"] | None
    engine: EngineDoc
    engine_draft_load_format: str | None = Field(
        description="The format that this engine version really uses; null when unknown"
    )
    method: Method | None
    findings: list[FindingDoc]


class FieldProblemDoc(BaseModel):
    """A field that does not fit."""

    field: str
    code: str
    detail: str


class ProblemDoc(BaseModel):
    """RFC 9457 problem; `code` is stable, `message` repeats `detail`."""

    model_config = ConfigDict(extra="allow")
    type: str
    title: str
    status: int
    detail: str
    instance: str
    code: str
    message: str
    errors: list[FieldProblemDoc] | None = None


class Status(BaseModel):
    """A process that answers."""

    status: Literal["ok"]


class WorkerStateDoc(BaseModel):
    """What the worker is doing."""

    state: Literal["disabled", "starting", "loading", "ready", "restarting", "stopping", "failed"]
    detail: str | None
    progress: dict[str, int] | None = None


class Readiness(BaseModel):
    """Whether metadata can be answered, and the worker's state beside it."""

    status: Literal["ok", "stopping"]
    worker: WorkerStateDoc


class VersionInfo(BaseModel):
    """Versions."""

    version: str
    protocol_version: int
    newest_known_engines: dict[str, str]


TokenIds: TypeAlias = Annotated[list[StrictInt], Field(description="One prompt as token ids")]
LeaseTtl: TypeAlias = Annotated[
    StrictInt | StrictFloat, Field(ge=1, le=600, description="Seconds until the lease ends")
]


class HiddenStatesRequest(RequestModel):
    """Prompts whose hidden states to compute; exactly one of the two prompt fields."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"prompt_token_ids": [[1, 2, 3]], "lease_ttl_s": 30}]}
    )
    prompt_token_ids: Annotated[list[TokenIds], Field(min_length=1, max_length=4096)] | None = None
    prompts: Annotated[list[StrictStr], Field(min_length=1, max_length=4096)] | None = None
    lease_ttl_s: LeaseTtl = 30

    @model_validator(mode="after")
    def _exactly_one(self) -> HiddenStatesRequest:
        if (self.prompt_token_ids is None) == (self.prompts is None):
            raise ValueError("give exactly one of prompt_token_ids and prompts")
        return self


class RenewRequest(RequestModel):
    """How long the lease is to live from now on."""

    lease_ttl_s: LeaseTtl = 30


class LeaseDoc(BaseModel):
    """Rows of one prompt in the slab; axes are `[token, hidden]`."""

    lease_id: str
    index: int
    slot: int
    sequence: int
    row_start: int
    num_tokens: int
    byte_offset: int = Field(description="From the region's base_offset")
    byte_size: int
    shape: list[int]
    axes: list[str]
    dtype: str
    token_ids: list[int]
    expires_at: str


class HiddenStatesAnswerDoc(BaseModel):
    """All leases, in the order of the prompts."""

    epoch: str
    leases: list[LeaseDoc]


class LeaseAnswerDoc(BaseModel):
    """One lease."""

    epoch: str
    lease: LeaseDoc


class DeviceDoc(BaseModel):
    """Where the target runs."""

    type: Literal["cpu", "cuda"]
    uuid: str | None
    name: str


class HiddenStatesLayoutDoc(BaseModel):
    """What one row holds."""

    source: Literal["final", "aux_layers", "pre_hc_head"]
    layer_ids: list[int] | None
    capture_points: list[int] | None
    norm: Literal["pre", "post"] | None
    width: int
    dtype: str
    bytes_per_token: int
    rows: int
    buffer_bytes: int


class TargetDoc(BaseModel):
    """The held model."""

    model: str
    revision: str | None
    architecture: str
    dtype: str
    hidden_size: int
    num_hidden_layers: int
    vocab_size: int
    max_num_batched_tokens: int
    device: DeviceDoc
    hidden_states: HiddenStatesLayoutDoc
    has_tokenizer: bool


class RegionDoc(BaseModel):
    """How to map the slab; see the transport's documentation."""

    format_version: int
    epoch: str
    kind: Literal["cuda_ipc", "memfd"]
    raw_handle: dict[str, str] | None
    byte_size: int
    base_offset: int
    device: dict[str, Any]
    slots: int
    slot_bytes: int
    rows_per_slot: int
    row_bytes: int
    dtype: str
    width: int
    control_byte_size: int
    exporter_pid: int
