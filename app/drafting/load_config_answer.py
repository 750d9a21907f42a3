"""With which load config the draft model is loaded: vLLM's two steps, and where an engine version differs.

Sources: vLLM 0.33 ``vllm/model_executor/model_loader/utils.py`` (step 1, ``get_draft_load_config``) and
``vllm/v1/worker/gpu/spec_decode/utils.py`` (step 2, the pipeline-parallel guard).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Struct

from .engines import GUARDED_FORMAT, EngineRef, LoadPath, behaviour, engine_or_newest
from .findings import Finding
from .load_config import LoadConfig, check_pipeline_parallel_size, get_pp_safe_draft_load_config
from .load_config_findings import load_config_findings

Reason: TypeAlias = Literal["pp_collective_loader", "ipc_cache_draft"]

# The families whose drafts share a cached target's weights (the names are vLLM's).
_CACHEABLE: Final = frozenset({"eagle", "eagle3", "mtp"})
# ... and the family that vLLM is told as one of them.
_TOLD_AS_CACHEABLE: Final = frozenset({"peagle"})


class LoadConfigAnswer(Struct, frozen=True):
    """The effective load configs.

    Attributes:
        target: as given, with defaults.
        draft: what the draft is loaded with.
        changed: fields in which ``draft`` differs from what step 1 was given (``draft_load_config``, else the target's).
        reason: why; ``None`` when nothing changed.
        engine: for which engine the findings are.
        engine_draft_load_format: the format that this engine version really uses; ``None`` when that is not known.
        method: the drafter's family, as far as it is known.
        findings: where the engine differs, and what to know.
    """

    target: LoadConfig
    draft: LoadConfig
    changed: tuple[str, ...]
    reason: Reason | None
    engine: EngineRef
    engine_draft_load_format: str | None
    method: str | None
    findings: tuple[Finding, ...]


class LoadSteps(NamedTuple):
    """The load config of the draft before, between and after the two steps."""

    given: LoadConfig
    chosen: LoadConfig
    guarded: LoadConfig


def answer_load_config(
    load_config: LoadConfig,
    pipeline_parallel_size: int,
    *,
    draft_load_config: LoadConfig | None = None,
    method: str | None = None,
    engine: EngineRef | None = None,
    draft_config: Mapping[str, Any] | None = None,
) -> LoadConfigAnswer:
    """Answer for a pair of load configs.

    Args:
        load_config: the target's.
        pipeline_parallel_size: the target's number of pipeline stages.
        draft_load_config: the draft's own, if one is set.
        method: the drafter's family (``dflash``, ``eagle3``, ...), if it is known.
        engine: the newest known vLLM when ``None``.
        draft_config: the drafter's parsed ``config.json``, to tell models that a method's name alone does not.

    Raises:
        LoadConfigError: ``pipeline_parallel_size`` is no positive integer.
    """
    stages = check_pipeline_parallel_size(pipeline_parallel_size)
    engine = engine_or_newest(engine)
    given = load_config if draft_load_config is None else draft_load_config
    chosen = load_config_for_draft(load_config, draft_load_config, method)
    steps = LoadSteps(given, chosen, get_pp_safe_draft_load_config(chosen, stages))
    changed = tuple(
        name for name in LoadConfig.__struct_fields__ if getattr(steps.guarded, name) != getattr(given, name)
    )
    paths = _paths(method, engine, draft_config)
    used = _engine_formats(load_config, draft_load_config, method, paths, stages=stages, engine=engine)
    return LoadConfigAnswer(
        target=load_config,
        draft=steps.guarded,
        changed=changed,
        reason=_reason(steps, changed),
        engine=engine,
        engine_draft_load_format=next(iter(used)) if len(used) == 1 else None,
        method=method,
        findings=tuple(
            load_config_findings(
                load_config,
                draft_load_config,
                chosen=chosen,
                draft=steps.guarded,
                method=method,
                paths=paths,
                stages=stages,
                engine=engine,
            )
        ),
    )


def load_config_for_draft(
    load_config: LoadConfig, draft_load_config: LoadConfig | None, method: str | None
) -> LoadConfig:
    """Step 1: the draft's own load config, else the target's, with ``ipc_cache`` made fit for a draft.

    ``ipc_cache`` takes weights from a process that holds the target. Drafts that share the target's weights (eagle,
    eagle3, mtp) ask it with ``is_draft``; others are loaded from their own files, without the cache's options.
    """
    if draft_load_config is not None:
        return draft_load_config
    if load_config.load_format != "ipc_cache":
        return load_config
    if method in _CACHEABLE:
        extra = {**load_config.model_loader_extra_config, "is_draft": True}
        return msgspec.structs.replace(load_config, model_loader_extra_config=extra)
    return msgspec.structs.replace(load_config, load_format="auto", model_loader_extra_config={})


def _paths(
    method: str | None, engine: EngineRef, draft_config: Mapping[str, Any] | None
) -> tuple[LoadPath, ...]:
    """How the method's loader may come to the draft's load config; empty where that is not known."""
    known = behaviour(engine).draft_load_paths
    if known is None or method is None:
        return ()
    paths = known.value.get(method, ())
    if method == "mtp" and draft_config is not None:
        wanted = "unguarded" if _is_gemma4(draft_config) else "guarded"
        return tuple(path for path in paths if path == wanted)
    return paths


def _is_gemma4(config: Mapping[str, Any]) -> bool:
    listed = config.get("architectures")
    names = [config.get("model_type"), *(listed if isinstance(listed, (list, tuple)) else ())]
    return any(isinstance(name, str) and name.lower().startswith("gemma4") for name in names)


def _engine_formats(
    load_config: LoadConfig,
    draft_load_config: LoadConfig | None,
    method: str | None,
    paths: tuple[LoadPath, ...],
    *,
    stages: int,
    engine: EngineRef,
) -> set[str]:
    """The formats that the engine's version may use: one where it is certain, none where nothing is known."""
    known = behaviour(engine).draft_load_paths
    if known is None:
        return _formats_without_paths(load_config, draft_load_config, stages, engine)
    ways = {method: paths} if method is not None else known.value
    return {
        _format_of_path(path, load_config, draft_load_config, name, stages)
        for name, possible in ways.items()
        for path in possible
        if path != "none"
    }


def _format_of_path(
    path: LoadPath, load_config: LoadConfig, draft_load_config: LoadConfig | None, method: str, stages: int
) -> str:
    if path == "target":
        return load_config.load_format
    told = "eagle3" if method in _TOLD_AS_CACHEABLE else method
    load_format = load_config_for_draft(load_config, draft_load_config, told).load_format
    return "auto" if path == "guarded" and stages > 1 and load_format == GUARDED_FORMAT else load_format


def _formats_without_paths(
    load_config: LoadConfig, draft_load_config: LoadConfig | None, stages: int, engine: EngineRef
) -> set[str]:
    """What follows when nothing is known of how the version chooses, except whether it has the guard.

    Whatever it does, it can only use one of the two given formats; a guard, if it may have one, adds ``auto``.
    """
    if engine.name != "vllm" or load_config.load_format == "ipc_cache":
        return set()
    formats = {load_config.load_format}
    if draft_load_config is not None:
        formats.add(draft_load_config.load_format)
    guard = behaviour(engine).pp_guard
    if stages > 1 and GUARDED_FORMAT in formats and (guard is None or guard.value == "present"):
        formats.add("auto")
    return formats


def _reason(steps: LoadSteps, changed: tuple[str, ...]) -> Reason | None:
    if not changed:
        return None
    return "ipc_cache_draft" if steps.guarded is steps.chosen else "pp_collective_loader"
