"""Checks of the method: known, supported, what the config says, and what the engine would take it for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from .catalogue import finding
from .findings import Finding
from .json_values import show
from .methods import METHODS, engine_refuses
from .pair import BUNDLED, MODEL_FREE, Pair, mtp_depth, speaks_of

# Methods that vLLM keeps when they are given; others are refined by path and class.
_KEPT: Final = frozenset({"eagle", "eagle3", "dflash", "dspark", "ngram", "suffix", "extract_hidden_states"})
# In vLLM's order. Source: vLLM 0.33: vllm/config/speculative.py.
_PATH_PARTS: Final = (("eagle-", "eagle"), ("eagle3", "eagle3"), ("dflash", "dflash"), ("dspark", "dspark"))
_DSPARK_CLASSES: Final = frozenset(
    {"Qwen3DSparkModel", "Qwen3OmniDSparkModel", "MuseSparkDSparkModel", "Gemma4DSparkModel"}
)
_REMOVED: Final = frozenset({"medusa", "mlp_speculator"})
# Configs that trainers write without architectures.
_WITHOUT_ARCHITECTURES: Final = frozenset({"medusa", "mlp_speculator", "mtp", "extract_hidden_states"})


def method_findings(pair: Pair) -> Iterator[Finding]:
    """All findings about the method of a pair."""
    yield from _unknown(pair)
    yield from _missing_draft(pair)
    yield from _refused(pair)
    yield from _contradicted(pair)
    yield from _path(pair)
    yield from _architectures(pair)
    yield from _mtp(pair)
    yield from _runner(pair)


def _unknown(pair: Pair) -> Iterator[Finding]:
    asked = pair.request.method
    if asked is not None and pair.asked is None:
        yield finding(
            "method_unknown",
            "method",
            reason=f"the request's method {show(asked)} is none of " + ", ".join(METHODS),
        )
    elif pair.method is None and (pair.has_draft or not pair.target):
        yield finding(
            "method_unknown", "draft", reason="the drafter's config has none of the fields that name a family"
        )


def _missing_draft(pair: Pair) -> Iterator[Finding]:
    if pair.has_draft or not pair.target or pair.method in MODEL_FREE:
        return
    if pair.method is None:
        yield finding("draft_missing", "draft", method="any method")
    elif pair.method not in BUNDLED:
        yield finding("draft_missing", "draft", method=pair.method)
    elif pair.method != "extract_hidden_states" and pair.detection.method not in BUNDLED:
        yield finding("draft_missing", "draft", severity="warning", method=pair.method)


def _refused(pair: Pair) -> Iterator[Finding]:
    if pair.method is None or engine_refuses(pair.method, pair.engine) is not True:
        return
    code = "method_removed" if pair.method in _REMOVED and pair.engine.name == "vllm" else "method_refused"
    yield finding(code, "method", method=pair.method, engine=str(pair.engine))


def _contradicted(pair: Pair) -> Iterator[Finding]:
    asked, detected = pair.asked, pair.detection.method
    if asked is None or detected is None or asked in MODEL_FREE or speaks_of(asked, detected, pair.engine):
        return
    if not pair.has_draft and (detected not in BUNDLED or asked in {"mtp", "dspark"} & _also(pair)):
        return
    yield finding(
        "method_contradicted",
        "method",
        *pair.detection.evidence[:4],
        asked=asked,
        detected=detected,
        evidence=", ".join(pair.detection.evidence[:4]),
    )


def _also(pair: Pair) -> set[str]:
    """DeepSeek V4's checkpoints carry both MTP layers and a DSpark drafter: either may be asked for."""
    return {"mtp"} if mtp_depth(pair.draft) is not None else set()


def _path(pair: Pair) -> Iterator[Finding]:
    name = pair.request.draft_name
    if not pair.has_draft:
        # vLLM takes the target's path for the draft's when it is told mtp, and no path when it is told nothing.
        name = pair.request.target_name if pair.asked == "mtp" else None
    if name is None or pair.engine.name != "vllm" or pair.engine_method is None or pair.asked in _KEPT:
        return
    if pair.raw.get("speculators_config") is not None or pair.method in MODEL_FREE:
        return
    by_path, why = _as_vllm_finds_it(name, pair)
    if by_path != pair.engine_method and pair.detection.method is not None:
        yield finding(
            "path_changes_method",
            "draft.model" if pair.has_draft else "target.model",
            "method",
            why=why,
            by_path=by_path,
            detected=pair.detection.method,
            engine_method=pair.engine_method,
        )


def _as_vllm_finds_it(name: str, pair: Pair) -> tuple[str, str]:
    """The method that vLLM comes to by itself, and why."""
    lowered = name.lower()
    classes = set(pair.draft_shape.architectures)
    by_class = {
        "dflash": "MuseGlimmerAssistantModel" in classes,
        "dspark": bool(classes & _DSPARK_CLASSES)
        or ("DSparkDraftModel" in classes and pair.draft.get("model_type") == "qwen3"),
    }
    for part, method in _PATH_PARTS:
        if part in lowered:
            return method, f"the path contains '{part}'"
        if by_class.get(method):
            return method, f"the class is {method}'s"
    if pair.detection.method == "mtp":
        return "mtp", "the model type has MTP layers"
    return "draft_model", "neither the path nor the class names a method"


def _architectures(pair: Pair) -> Iterator[Finding]:
    if not pair.has_draft or pair.method is None or pair.method in _WITHOUT_ARCHITECTURES | MODEL_FREE:
        return
    if not pair.draft_shape.architectures and pair.normalized.translated_from != "speculators":
        yield finding("architectures_missing", "architectures", method=pair.method)


def _mtp(pair: Pair) -> Iterator[Finding]:
    if pair.method != "mtp":
        return
    if any(
        name.startswith("deepseek_v41")
        for name in pair.target_shape.model_types + pair.draft_shape.model_types
    ):
        yield finding("mtp_replaced_by_dspark", "method")
    elif pair.raw and mtp_depth(pair.draft) is None:
        yield finding("mtp_depth_unknown", "num_nextn_predict_layers")


def _runner(pair: Pair) -> Iterator[Finding]:
    if pair.engine.name == "vllm" and pair.method in {"pard", "peagle"}:
        yield finding("v1_runner_fallback", "method", method=pair.method)
