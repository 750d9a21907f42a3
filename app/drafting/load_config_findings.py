"""What somebody should know about the load config of a draft: mostly, where an engine version would hang."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from .engines import (
    COLLECTIVE_UNGUARDED,
    FORMER_LOAD_FORMATS,
    GUARDED_FORMAT,
    NEWEST_VLLM,
    NEWEST_VLLM_REF,
    EngineRef,
    LoadPath,
    behaviour,
)
from .findings import Finding
from .json_values import show
from .load_config import LoadConfig

_HANG_REPORT: Final = "https://github.com/vllm-project/vllm/issues/50959"
_GUARD: Final = "https://github.com/vllm-project/vllm/pull/54416"
_IGNORED_REPORT: Final = "https://github.com/vllm-project/vllm/pull/55337"


def load_config_findings(
    load_config: LoadConfig,
    draft_load_config: LoadConfig | None,
    *,
    chosen: LoadConfig,
    draft: LoadConfig,
    method: str | None,
    paths: tuple[LoadPath, ...],
    stages: int,
    engine: EngineRef,
) -> Iterator[Finding]:
    """All findings.

    Args:
        load_config: the target's.
        draft_load_config: the draft's own, if one is set.
        chosen: the draft's after step 1, before the guard.
        draft: the draft's after the guard.
        method: the drafter's family.
        paths: how its loader may come to the draft's load config; empty where that is not known.
        stages: the target's pipeline stages.
        engine: with its version.
    """
    yield from _registration_findings(load_config, draft_load_config, engine)
    yield from _ipc_cache_findings(load_config, draft_load_config, method)
    if stages > 1:
        reads_target = "target" in paths and load_config.load_format == GUARDED_FORMAT
        if chosen.load_format == GUARDED_FORMAT or reads_target:
            yield from _guard_findings(method, paths, engine)
        yield from _collective_findings(draft, draft_load_config)
    yield from _override_findings(load_config, draft_load_config, method, paths, engine)


def _registration_findings(
    load_config: LoadConfig, draft_load_config: LoadConfig | None, engine: EngineRef
) -> Iterator[Finding]:
    names = {"load_config.load_format": load_config.load_format}
    if draft_load_config is not None:
        names["draft_load_config.load_format"] = draft_load_config.load_format
    known = behaviour(engine).registered_load_formats
    if known is None and engine.name != "vllm":
        return
    newest = behaviour(NEWEST_VLLM_REF).registered_load_formats
    registered = (
        known.value if known is not None else (newest.value if newest else frozenset()) | FORMER_LOAD_FORMATS
    )
    for field, name in names.items():
        if name not in registered:
            yield Finding(
                "warning",
                "load_format_unregistered",
                f"vLLM itself registers no load format {show(name)}: without a plug-in that does, loading fails, late. "
                f"Install the plug-in or use one of {', '.join(sorted(registered))}.",
                fields=(field,),
                see=(known.source,) if known is not None else (),
                evidence="run by us",
            )


def _ipc_cache_findings(
    load_config: LoadConfig, draft_load_config: LoadConfig | None, method: str | None
) -> Iterator[Finding]:
    if draft_load_config is not None or load_config.load_format != "ipc_cache":
        return
    if method is None:
        yield Finding(
            "warning",
            "ipc_cache_method_unknown",
            "Whether the draft is taken from the ipc_cache depends on the method, which is not known: auto is answered, "
            "and it is ipc_cache for eagle, eagle3 and mtp. Name the method.",
            fields=("method", "load_config.load_format"),
        )
    elif method == "peagle":
        yield Finding(
            "info",
            "ipc_cache_told_as_eagle3",
            "vLLM is told eagle3 for P-EAGLE drafters and so takes the draft from the ipc_cache, too. "
            "Set draft_load_config to decide it.",
            fields=("method", "load_config.load_format"),
        )


def _guard_findings(method: str | None, paths: tuple[LoadPath, ...], engine: EngineRef) -> Iterator[Finding]:
    """For drafts on fastsafetensors with several stages: does this version fall back, and for this method?"""
    guard = behaviour(engine).pp_guard
    if guard is None:
        yield Finding(
            "warning",
            "pp_guard_unknown",
            f"Whether {engine} falls back to auto is not known here: without the fallback the draft's load hangs until "
            f"a watchdog ends it. Set draft_load_config.load_format to auto, or use vLLM {NEWEST_VLLM}.",
            fields=("engine.version", "load_config.load_format"),
            see=(_HANG_REPORT, _GUARD),
        )
        return
    if guard.value == "absent":
        yield Finding(
            "error",
            "pp_guard_missing",
            f"{engine} has no fallback: it loads the draft with fastsafetensors, whose broadcasts wait for pipeline "
            "stages that load no draft, and hangs until a watchdog ends it. Set the draft's load format to auto or "
            "safetensors where that version honours it, the target's otherwise, or upgrade.",
            fields=("engine.version", "load_config.load_format"),
            see=tuple(dict.fromkeys((_HANG_REPORT, guard.source))),
            evidence="reported",
        )
        return
    if "unguarded" in paths or "target" in paths:
        yield _unguarded(method, paths, engine)


def _unguarded(method: str | None, paths: tuple[LoadPath, ...], engine: EngineRef) -> Finding:
    certain = "guarded" not in paths
    known = behaviour(engine).draft_load_paths
    return Finding(
        "warning" if certain else "info",
        "method_unguarded",
        f"In {engine} the {method} code path "
        f"{'skips' if certain else 'of some models (Gemma 4) skips'} the fallback and would load the draft with "
        "fastsafetensors, which waits for the other pipeline stages. Use auto or safetensors for it explicitly.",
        fields=("method", "load_config.load_format"),
        see=(known.source,) if known is not None else (),
        evidence="inferred",
    )


def _collective_findings(draft: LoadConfig, draft_load_config: LoadConfig | None) -> Iterator[Finding]:
    source = COLLECTIVE_UNGUARDED.get(draft.load_format)
    if source is None:
        return
    fields = ["load_config" if draft_load_config is None else "draft_load_config"] * 2
    if draft.load_format == "runai_streamer":
        if draft.model_loader_extra_config.get("distributed") is not True:
            return
        fields[1] += ".model_loader_extra_config"
    fields[0] += ".load_format"
    yield Finding(
        "warning",
        "collective_loader_unguarded",
        f"{draft.load_format} opens files collectively over all ranks, as fastsafetensors does, and no vLLM release "
        "known here falls back for it: a draft on one pipeline stage may hang. Set draft_load_config to auto.",
        fields=tuple(name for name in fields if "." in name),
        see=(source, "https://github.com/scitix/InstantTensor/issues/13")
        if draft.load_format == "instanttensor"
        else (source,),
        evidence="inferred",
    )


def _override_findings(
    load_config: LoadConfig,
    draft_load_config: LoadConfig | None,
    method: str | None,
    paths: tuple[LoadPath, ...],
    engine: EngineRef,
) -> Iterator[Finding]:
    """About versions and code paths that don't read ``draft_load_config``."""
    if draft_load_config is None or draft_load_config == load_config or engine.name != "vllm":
        return
    known = behaviour(engine).draft_load_paths
    if known is None:
        yield Finding(
            "warning",
            "draft_load_config_unknown",
            f"Whether {engine} honours draft_load_config is not known here; some versions silently use the target's. "
            f"Check it in that version's log, or use vLLM {NEWEST_VLLM}.",
            fields=("draft_load_config",),
            see=(_IGNORED_REPORT,),
            evidence="reported",
        )
    elif "target" in paths:
        certain = paths == ("target",)
        yield Finding(
            "warning",
            "draft_load_config_ignored",
            f"In {engine} the {method} code path {'loads' if certain else 'may load'} the draft with the target's "
            "load config, whatever draft_load_config says. Choose a target load config that suits both.",
            fields=("draft_load_config", "method"),
            see=(known.source,),
        )
