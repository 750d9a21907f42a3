"""Puts together what was asked in fields and what a ``vllm serve`` command line says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from msgspec import Struct

from .engines import EngineRef, parse_engine
from .load_config import LoadConfig, parse_load_config
from .placement import Parallel
from .plan_request import PlanRequest
from .vllm_args import VllmArgs

_Value = TypeVar("_Value")
_PARALLEL = ("tensor_parallel_size", "pipeline_parallel_size", "draft_tensor_parallel_size")
_SAME = (
    "method",
    "num_speculative_tokens",
    "max_num_batched_tokens",
    "max_num_seqs",
    "dtype",
    "enable_prefix_caching",
)


class ContradictionError(ValueError):
    """A field and the command line say different things.

    Attributes:
        field: dotted path of the field.
        detail: what to do.
    """

    def __init__(self, field: str) -> None:
        self.field = field
        self.detail = "The command line says something else; give it in one of the two places."
        super().__init__(f"{field}: {self.detail}")


class PlanFields(Struct, frozen=True, kw_only=True):
    """The fields of a plan's request that may come from either side, ``None`` where nothing is said.

    Load configs are JSON objects with vLLM's field names, unchecked; names are hub ids or directories.
    """

    target_name: str | None = None
    target_revision: str | None = None
    draft_name: str | None = None
    draft_revision: str | None = None
    method: str | None = None
    num_speculative_tokens: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    load_config: dict[str, Any] | None = None
    draft_load_config: dict[str, Any] | None = None
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    draft_tensor_parallel_size: int | None = None
    dtype: str | None = None
    enable_prefix_caching: bool | None = None
    engine: EngineRef | None = None

    @property
    def parallel(self) -> Parallel:
        """Sizes of the process groups, 1 where nothing is said."""
        return Parallel(
            self.tensor_parallel_size or 1, self.pipeline_parallel_size or 1, self.draft_tensor_parallel_size
        )

    def request(
        self,
        target_config: Mapping[str, Any] | None,
        draft_config: Mapping[str, Any] | None,
        *,
        trained_mask_token_id: int | None = None,
        token_text: Callable[[int], str | None] | None = None,
    ) -> PlanRequest:
        """The plan's request, once somebody has read the two configs.

        Raises:
            LoadConfigError: a field of a load config does not fit; its path says of which of the two.
        """
        return PlanRequest(
            target_config=target_config,
            draft_config=draft_config,
            load_config=_load_config(self.load_config, "load_config"),
            draft_load_config=_load_config(self.draft_load_config, "draft_load_config"),
            parallel=self.parallel,
            trained_mask_token_id=trained_mask_token_id,
            token_text=token_text,
            **{name: getattr(self, name) for name in ("target_name", "draft_name", "engine", *_SAME)},
        )


def merge(fields: PlanFields, args: VllmArgs | None) -> PlanFields:
    """The request that both sides together make.

    An engine version comes from whichever side names one: an image tag on a command line, or the field.

    Raises:
        ContradictionError: the two sides say different things.
    """
    if args is None:
        return fields
    merged: dict[str, Any] = {name: _one(name, getattr(fields, name), getattr(args, name)) for name in _SAME}
    for name in _PARALLEL:
        merged[name] = _one(f"parallel.{name}", getattr(fields, name), getattr(args, name))
    for side in ("target", "draft"):
        model: str | None = _one(f"{side}.model", getattr(fields, f"{side}_name"), getattr(args, side))
        revision = _one(
            f"{side}.revision", getattr(fields, f"{side}_revision"), getattr(args, f"{side}_revision")
        )
        merged |= {f"{side}_name": model, f"{side}_revision": None if model is None else revision}
    for name in ("load_config", "draft_load_config"):
        merged[name] = _objects(name, getattr(fields, name), getattr(args, name))
    return PlanFields(**merged, engine=_engine(fields.engine, parse_engine(args.engine)))


def _load_config(fields: Mapping[str, Any] | None, at: str) -> LoadConfig | None:
    return None if fields is None else parse_load_config(fields, at=at)


def _one(field: str, asked: _Value | None, said: _Value | None) -> _Value | None:
    if asked is None or said is None or asked == said:
        return said if asked is None else asked
    raise ContradictionError(field)


def _objects(name: str, asked: dict[str, Any] | None, said: dict[str, Any] | None) -> dict[str, Any] | None:
    if asked is None or said is None:
        return said if asked is None else asked
    return {key: _one(f"{name}.{key}", asked.get(key), said.get(key)) for key in {**said, **asked}}


def _engine(asked: EngineRef | None, said: EngineRef) -> EngineRef:
    if asked is None or asked == said:
        return said
    if asked.name != said.name:
        raise ContradictionError("engine.name")
    return EngineRef(asked.name, _one("engine.version", asked.version, said.version))
