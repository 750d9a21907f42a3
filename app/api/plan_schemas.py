"""Shapes of ``/v1/drafting-plan`` at the REST border."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, model_validator

from .answer_schemas import CandidateDoc, EngineDoc, FindingDoc, LoadConfigAnswerDoc, ModelDoc, ProblemDoc
from .schemas import Engine, Method, ModelRef, PipelineSize, RequestModel

MOST_PLANS = 64
Count: TypeAlias = Annotated[StrictInt, Field(ge=1, le=2**31 - 1)]
Word: TypeAlias = Annotated[StrictStr, Field(max_length=65536)]


class ParallelSpec(RequestModel):
    """Sizes of the engine's process groups."""

    tensor_parallel_size: PipelineSize | None = None
    pipeline_parallel_size: PipelineSize | None = None
    draft_tensor_parallel_size: PipelineSize | None = Field(
        None,
        description="Ranks that share one draft: 1 or the target's tensor_parallel_size, which is the default",
    )


class DraftingPlanRequest(RequestModel):
    """Will this target and this drafter work together, on that engine, with those sizes?"""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "target": {
                        "config": {"model_type": "qwen3", "hidden_size": 1024, "num_hidden_layers": 28}
                    },
                    "draft": {
                        "config": {"dflash_config": {"mask_token_id": 151669, "target_layer_ids": [1, 13]}}
                    },
                    "num_speculative_tokens": 8,
                    "load_config": {"load_format": "fastsafetensors"},
                    "parallel": {"pipeline_parallel_size": 2},
                },
                {"vllm_args": "vllm serve org/target --speculative-config.method ngram"},
            ]
        }
    )
    target: ModelRef | None = None
    draft: ModelRef | None = Field(
        None,
        description="Null where the drafter lives in the target (MTP layers) or is no model (ngram, suffix)",
    )
    method: Annotated[StrictStr, Field(max_length=64)] | None = Field(
        None, description="What the engine is told: a family, or an engine's own name such as `deepseek_mtp`"
    )
    num_speculative_tokens: Count | None = None
    max_num_batched_tokens: Count | None = None
    max_num_seqs: Count | None = None
    load_config: dict[str, Any] | None = Field(None, description="The target's, with vLLM's fields")
    draft_load_config: dict[str, Any] | None = Field(None, description="The draft's own, if any")
    parallel: ParallelSpec = ParallelSpec()
    dtype: Annotated[StrictStr, Field(max_length=64)] | None = Field(
        None, description="The engine's `--dtype`; by default the target config's"
    )
    engine: Engine | None = None
    enable_prefix_caching: StrictBool | None = Field(None, description="By default the engine's own, on")
    trained_mask_token_id: StrictInt | None = Field(
        None, description="From the training run, to compare with what the config declares"
    )
    vllm_args: Word | Annotated[list[Word], Field(max_length=4096)] | None = Field(
        None,
        description="A `vllm serve` command line, as one string or as words. What fields say must not contradict it; "
        "an inline config takes the place of the model that it names",
    )

    @model_validator(mode="after")
    def _about_something(self) -> DraftingPlanRequest:
        if self.target is None and self.draft is None and self.vllm_args is None:
            raise ValueError("give a target, a draft or vllm_args")
        return self


class PlanMaskTokenDoc(BaseModel):
    """The id that the engine reads; `mask_token_id` is null where it would find none."""

    mask_token_id: int | None
    source: str | None
    translated_from: Literal["speculators", "text_config"] | None
    token: str | None
    candidates: list[CandidateDoc]


class PlacementDoc(BaseModel):
    """Which processes hold the drafter: a pipeline stage counted from 0, and global ranks."""

    draft_stage: int | None
    draft_ranks: list[int] | None
    target_ranks: int


class PlannedHiddenStatesDoc(BaseModel):
    """What the drafter reads of the target, as far as the configs say."""

    model_config = ConfigDict(extra="allow")
    source: Literal["final", "aux_layers", "pre_hc_head"]
    layer_ids: list[int] | None = Field(description="In the drafter's own convention")
    capture_points: list[int] | None = Field(
        description="Point L is the residual stream entering decoder layer L; null where the convention is unknown"
    )
    norm: Literal["pre", "post"] | None
    width: int | None
    dtype: str | None
    bytes_per_token: int | None
    rows: int | None
    buffer_bytes: int | None


class BudgetDoc(BaseModel):
    """Rows and tokens of a step; null where an input or the engine's rule is unknown."""

    model_config = ConfigDict(extra="allow")
    required_rows: int | None = Field(description="max_num_seqs x rows_per_request, unpadded")
    rows_per_request: int | None
    padded_rows: int | None
    max_num_batched_tokens: int | None
    max_num_seqs: int | None
    num_speculative_tokens: int | None
    extra_slots_per_request: int | None
    scheduled_token_budget: int | None


class DraftingPlanDoc(BaseModel):
    """The plan; problems of the pair are its findings, the worst first."""

    ok: bool = Field(description="No finding of severity `error`")
    method: Method | None
    engine_method: str | None
    engine: EngineDoc
    mask_token: PlanMaskTokenDoc | None
    load_config: LoadConfigAnswerDoc | None
    placement: PlacementDoc
    hidden_states: PlannedHiddenStatesDoc | None
    budget: BudgetDoc
    findings: list[FindingDoc]
    target: ModelDoc | None = Field(description="Which config of the target was read")
    draft: ModelDoc | None = Field(description="Which config of the draft was read")
    ignored_vllm_args: list[str] = Field(description="Flags of `vllm_args` that play no part in a plan")


class PlanOrProblem(BaseModel):
    """The answer to one of several requests: a plan, or the problem that a single request would be answered with."""

    plan: DraftingPlanDoc | None
    problem: ProblemDoc | None
