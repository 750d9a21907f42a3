"""Shapes of metadata requests at the REST border: they validate what comes in and document it."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
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
ENGINE_TEXT = (
    "The engine that will read the config: an object, or `name==version`; default: the newest known vLLM"
)


class RequestModel(BaseModel):
    """Base of request bodies: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


class ModelRef(RequestModel):
    """A model by name or an inline config; exactly one of the two."""

    model: ModelName | None = Field(
        None, description="A model by name: a hub id, or a directory below a root"
    )
    revision: Revision | None = Field(
        None, description="Branch, tag or commit of a hub id; default: its main"
    )
    config: Config | None = Field(None, description="An inline config.json instead of `model`")

    @model_validator(mode="after")
    def _exactly_one(self) -> ModelRef:
        if (self.model is None) == (self.config is None):
            raise ValueError("give exactly one of model and config")
        if self.revision is not None and self.model is None:
            raise ValueError("revision goes with model only")
        return self


class EngineSpec(RequestModel):
    """An engine and its version, by default the newest known."""

    name: StrictStr = Field(max_length=64, examples=["vllm"], description="`vllm` or `sglang`")
    version: Annotated[StrictStr, Field(max_length=64)] | None = Field(
        None, examples=["0.33.0"], description="A released version; default: the newest known"
    )


EngineText: TypeAlias = Annotated[StrictStr, Field(max_length=130, examples=["vllm==0.33.0"])]
Engine: TypeAlias = EngineSpec | EngineText


class MaskTokenRequest(ModelRef):
    """Which mask token id will this drafter use?"""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"config": {"dflash_config": {"mask_token_id": 151669}, "vocab_size": 151936}}]
        }
    )
    target: ModelRef | None = Field(None, description="The target, to check the id against its vocabulary")
    engine: Engine | None = Field(None, description=ENGINE_TEXT)


class LoadConfigRequest(RequestModel):
    """Which load config will the draft model really get?"""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"load_config": {"load_format": "fastsafetensors"}, "pipeline_parallel_size": 2}]
        }
    )
    load_config: dict[str, Any] = Field(description="The target's load config, with vLLM's fields")
    pipeline_parallel_size: PipelineSize = Field(description="Pipeline stages of the target")
    draft_load_config: dict[str, Any] | None = Field(None, description="The draft's own load config, if any")
    model: ModelName | None = Field(None, description="The draft model, read only to infer `method`")
    revision: Revision | None = Field(None, description="Branch, tag or commit of the draft model")
    config: Config | None = Field(None, description="The draft's config.json, instead of `model`")
    method: Method | None = Field(
        None, description="The drafter's family; default: what the draft's config says"
    )
    engine: Engine | None = Field(None, description=ENGINE_TEXT)

    @model_validator(mode="after")
    def _at_most_one(self) -> LoadConfigRequest:
        if self.model is not None and self.config is not None:
            raise ValueError("give at most one of model and config")
        if self.revision is not None and self.model is None:
            raise ValueError("revision goes with model only")
        return self
