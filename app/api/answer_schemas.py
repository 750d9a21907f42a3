"""Shapes of answers at the REST border, problems included. They document what goes out; msgspec encodes it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from .schemas import Method


class FindingDoc(BaseModel):
    """One thing to know."""

    severity: Literal["error", "warning", "info"] = Field(
        description="`error`: it will not work, or work wrongly; `warning`: it may; `info`: good to know"
    )
    code: str = Field(description="Stable name of this kind of finding", examples=["mask_token_equals_eos"])
    detail: str = Field(description="What happens, and what to do")
    fields: list[str] = Field(description="Dotted paths in the config or the request that it is about")
    see: list[str] = Field(description="Links to where it was reported, or can be read")
    evidence: Literal["read in code", "run by us", "reported", "inferred"] = Field(
        description="How it is known"
    )


class CandidateDoc(BaseModel):
    """A place in the config that names an id."""

    source: str = Field(description="Dotted path in the raw file", examples=["dflash_config.mask_token_id"])
    value: Any = Field(description="What stands there, as it is")
    used: bool = Field(description="Whether this is the place that decides")


class EngineDoc(BaseModel):
    """The engine that an answer is for."""

    name: str = Field(description="The engine", examples=["vllm"])
    version: str | None = Field(description="Its version; null where none is known", examples=["0.33.0"])


class ModelDoc(BaseModel):
    """Which config was read."""

    id: str | None = Field(description="Hub id or directory; null for an inline config")
    revision: str | None = Field(description="Commit of a hub id, else null")
    config_sha256: str = Field(description="SHA-256 of the file; of an inline config, of its canonical JSON")


class MaskTokenAnswerDoc(BaseModel):
    """The id that the engine reads, and where from."""

    mask_token_id: int = Field(description="What the engine's drafter will use", examples=[151669])
    source: str = Field(description="Place in the raw file", examples=["dflash_config.mask_token_id"])
    translated_from: Literal["speculators", "text_config"] | None = Field(
        description="What the engine translates before it reads the id; null: the file as it stands"
    )
    method: Method | None = Field(description="The drafter's family; null where the config does not say")
    engine_method: str | None = Field(description="What the engine wants to be told; null where it refuses")
    engine: EngineDoc = Field(description="The engine that the answer is for")
    token: str | None = Field(description="The token's text, where a tokenizer is at hand")
    candidates: list[CandidateDoc] = Field(description="Every place that names an id, used or not")
    findings: list[FindingDoc] = Field(description="What to know about this config")
    model: ModelDoc = Field(description="Which config was read")


class LoadConfigAnswerDoc(BaseModel):
    """The load configs of target and draft."""

    target: dict[str, Any] = Field(description="The target's load config, defaults filled in")
    draft: dict[str, Any] = Field(description="The load config that the draft model is to be loaded with")
    changed: list[str] = Field(description="Fields in which `draft` differs from what it was derived from")
    reason: Literal["pp_collective_loader", "ipc_cache_draft"] | None = Field(
        description="Why they differ; null when nothing changed"
    )
    engine: EngineDoc = Field(description="The engine that the answer is for")
    engine_draft_load_format: str | None = Field(
        description="The format that this engine version really uses; null when unknown"
    )
    method: Method | None = Field(
        description="The drafter's family, asked for or inferred; null when unknown"
    )
    findings: list[FindingDoc] = Field(description="Where the engine itself would differ")


class FieldProblemDoc(BaseModel):
    """A field that does not fit."""

    field: str = Field(description="Dotted path in the request", examples=["target.model"])
    code: str = Field(description="Stable name of what is wrong with it", examples=["unknown_field"])
    detail: str = Field(description="What is wrong, and what to do")


class ProblemDoc(BaseModel):
    """RFC 9457 problem; clients branch on `code`."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "examples": [
                {
                    "type": "urn:draftport:problem:invalid_request",
                    "title": "The request does not fit the schema",
                    "status": 422,
                    "detail": "revisoin: There is no such field.",
                    "instance": "/v1/mask-token",
                    "code": "invalid_request",
                    "message": "revisoin: There is no such field.",
                    "errors": [
                        {
                            "field": "revisoin",
                            "code": "unknown_field",
                            "detail": "There is no such field.",
                        }
                    ],
                }
            ]
        },
    )
    type: str = Field(description="A URN that ends with the code")
    title: str = Field(description="The kind of problem, in words; the same for every problem of this code")
    status: int = Field(description="The HTTP status")
    detail: str = Field(description="What happened here, and what to do")
    instance: str = Field(description="The path that was asked for")
    code: str = Field(description="Stable name of the kind of problem")
    message: str = Field(description="`detail` again, for clients that read that")
    errors: list[FieldProblemDoc] | None = Field(None, description="The fields that do not fit")


class Status(BaseModel):
    """A process that answers."""

    status: Literal["ok"] = Field(description="Always `ok`: who cannot say it does not answer")


class WorkerStateDoc(BaseModel):
    """What the worker is doing."""

    state: Literal["disabled", "starting", "loading", "ready", "restarting", "stopping", "failed"] = Field(
        description="Hidden states can be had in `ready` only; `failed` is final"
    )
    detail: str | None = Field(description="What it is doing, or why it failed")
    progress: dict[str, int] | None = Field(None, description="How far loading has come, where that is known")


class Readiness(BaseModel):
    """Whether metadata can be answered, and the worker's state beside it."""

    status: Literal["ok", "stopping"] = Field(description="`stopping` after SIGTERM, else `ok`")
    worker: WorkerStateDoc = Field(description="The worker's state; it does not change the status")


class VersionInfo(BaseModel):
    """Versions."""

    version: str = Field(description="Of the service")
    protocol_version: int = Field(description="Of the worker's socket")
    newest_known_engines: dict[str, str] = Field(
        description="The newest version of each engine that answers know"
    )
