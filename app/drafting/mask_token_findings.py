"""What somebody should know about a mask token id besides its value.

Nothing is claimed that a config can't show: an id within the vocabulary may still be an ordinary token, and only the training run knows which one was used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from .candidates import Candidate
from .engines import NEWEST_VLLM, EngineRef, behaviour
from .findings import Finding, Severity
from .json_values import json_type, show
from .mask_token import READING_ORDER
from .methods import MethodDetection
from .normalize import REGISTERED_SPECULATORS_TYPES, NormalizedConfig
from .sglang_mask_token import ALGORITHMS, SOURCE, SglangReading, read_as_sglang

_SPECIAL_TOKENS: Final = ("eos_token_id", "pad_token_id", "bos_token_id")
# Families that the order of two keys (vLLM 0.16) was written for.
_OLD_ORDER_METHODS: Final = frozenset({"pard", "pard2", "peagle"})
# Families that draft one token after the other, or without a model: no token stands for "not drafted yet".
_WITHOUT_MASK_TOKEN: Final = frozenset(
    {
        "eagle",
        "eagle3",
        "mtp",
        "medusa",
        "mlp_speculator",
        "draft_model",
        "ngram",
        "suffix",
        "extract_hidden_states",
    }
)
_MOST_DUPLICATES: Final = 16


def id_findings(
    token_id: int, place: str, config: Mapping[str, Any], target: Mapping[str, Any] | None
) -> Iterator[Finding]:
    """About the id itself: its sign, the vocabulary, the special tokens."""
    if token_id < 0:
        yield Finding(
            "error",
            "mask_token_negative",
            f"The id is {show(token_id)}, and an embedding has no such row: the look-up wraps around or fails. "
            "Set the id that the drafter was trained with; trainers write -1 where none was configured.",
            fields=(place,),
            see=("https://github.com/ggml-org/llama.cpp/issues/26761",),
        )
    yield from _vocabulary_findings(token_id, place, config, target)
    yield from _special_token_findings(token_id, config, target)


def value_findings(value: object, token_id: int, place: str) -> Iterator[Finding]:
    """About the JSON type that the engine converts without a word."""
    if type(value) is int:
        return
    if isinstance(value, float) and value != token_id:
        yield Finding(
            "warning",
            "mask_token_truncated",
            f"{place} is {show(value)}, which vLLM silently truncates to {show(token_id)}. "
            "Write the integer that the drafter was trained with.",
            fields=(place,),
            evidence="run by us",
        )
        return
    yield Finding(
        "warning",
        "mask_token_not_integer",
        f"{place} is {json_type(value)}, which vLLM 0.32 and 0.33 convert to {show(token_id)} and other readers refuse. "
        "Write it as an integer.",
        fields=(place,),
        evidence="run by us",
    )


def candidate_findings(candidates: Sequence[Candidate], token_id: int) -> Iterator[Finding]:
    """About the other places that name an id."""
    others = [found for found in candidates if not found.used and _differs(found.value, token_id)]
    if others:
        listed = ", ".join(f"{found.source} = {show(found.value)}" for found in others[:4])
        yield Finding(
            "warning",
            "mask_token_candidates_disagree",
            f"The config names other ids, too ({listed}); vLLM reads {show(token_id)} and other readers may not. "
            "Keep the id that the drafter was trained with in every place, or in one only.",
            fields=tuple(found.source for found in candidates if found.used)
            + tuple(o.source for o in others),
        )


def null_findings(candidates: Sequence[Candidate], normalized: NormalizedConfig) -> Iterator[Finding]:
    """About a ``null`` at the top level of the built config, the only one that the order skips."""
    place = normalized.raw_place("mask_token_id")
    skipped = any(found.source == place and found.value is None and not found.used for found in candidates)
    stopped_before = any(found.used and found.source.endswith(READING_ORDER[0]) for found in candidates)
    if skipped and not stopped_before and "mask_token_id" in normalized.config:
        yield Finding(
            "info",
            "mask_token_null_skipped",
            f"{place} is null, which vLLM skips at this place and at no other. Leave it out or set it to the id.",
            fields=(place,),
        )


def format_findings(normalized: NormalizedConfig, engine: EngineRef) -> Iterator[Finding]:
    """About speculators-format files that vLLM refuses or recognises only in part."""
    kind = normalized.speculators_type
    if normalized.unregistered:
        named = (
            f"speculators_model_type {show(kind)}"
            if kind
            else "A speculators file without speculators_model_type"
        )
        known = behaviour(engine).speculators_types
        yield Finding(
            "error" if known is not None and not normalized.config_section_missing else "warning",
            "speculators_type_unregistered",
            f"{named} is none that vLLM {NEWEST_VLLM} translates ({', '.join(sorted(REGISTERED_SPECULATORS_TYPES))}): "
            "it refuses the checkpoint, and the file is read here as it stands. "
            "Convert the checkpoint or use an engine that knows the type.",
            fields=("speculators_model_type",),
            evidence="run by us",
        )
    elif normalized.config_section_missing and normalized.translated_from == "speculators":
        yield Finding(
            "info",
            "speculators_config_missing",
            "vLLM recognises the speculators format by speculators_config, which is missing or null here: as it stands "
            "the file can't be built; the answer is what the translation gives. Add speculators_config or a model_type.",
            fields=("speculators_config",),
        )


def method_findings(detection: MethodDetection) -> Iterator[Finding]:
    """About labels that say another family than the rest of the file."""
    if detection.variant == "dflash2":
        yield Finding(
            "info",
            "dflash2_variant",
            "The architecture is DFlash2's; engines are told dflash. Serve it in bfloat16: float16 accepts no drafts.",
            fields=("architectures",),
            see=("https://github.com/vllm-project/vllm/issues/55250",),
            evidence="reported",
        )
    if detection.contradictions:
        yield Finding(
            "warning",
            "method_label_contradicts",
            f"The file is a {detection.method} drafter by {', '.join(detection.evidence[:4])}, but is labelled otherwise "
            f"({'; '.join(detection.contradictions)}). Tell the engine the method explicitly.",
            fields=("architectures",),
        )


def need_findings(method: str | None) -> Iterator[Finding]:
    """About families for which a missing id is no loss."""
    if method in _WITHOUT_MASK_TOKEN:
        yield Finding(
            "info",
            "mask_token_not_needed",
            f"{method} drafters do not draft in parallel, and engines ask for no mask token id. "
            "There is nothing to do unless the drafter is served with parallel drafting.",
        )


def engine_findings(
    raw: Mapping[str, Any],
    built: Mapping[str, Any],
    method: str | None,
    token_id: int | None,
    engine: EngineRef,
) -> Iterator[Finding]:
    """About engines and versions that read another id (``token_id`` is ``None`` where vLLM reads none)."""
    algorithm = ALGORITHMS.get(method or "")
    if algorithm is not None:
        reading = read_as_sglang(raw, algorithm)
        if reading.token_id != token_id or token_id is None:
            yield _sglang_finding(
                reading, algorithm, token_id, "error" if engine.name == "sglang" else "warning"
            )
    elif engine.name == "sglang":
        yield Finding(
            "info",
            "engine_mask_token_unknown",
            "SGLang reads a mask token id for DFLASH and DSPARK only; the answer is vLLM's order. "
            "Check what this engine does with the drafter.",
            see=(SOURCE,),
        )
    if engine.name == "vllm":
        yield from _version_findings(built, method, token_id, engine)


def duplicate_findings(duplicate_keys: Sequence[str]) -> Iterator[Finding]:
    """About keys that the file names more than once."""
    if duplicate_keys:
        listed = tuple(key[:64] for key in dict.fromkeys(duplicate_keys))[:_MOST_DUPLICATES]
        yield Finding(
            "warning",
            "duplicate_keys",
            f"The file names {', '.join(listed)} more than once; the last one wins here, other readers may take the "
            "first. Remove the copies.",
            fields=listed,
        )


def _vocabulary_findings(
    token_id: int, place: str, config: Mapping[str, Any], target: Mapping[str, Any] | None
) -> Iterator[Finding]:
    whose, found = "target", _vocab_size(target) if target is not None else None
    if found is None:
        whose, found = "draft", _vocab_size(config)
    if found is None:
        yield Finding(
            "info",
            "vocab_size_unknown",
            "Neither config says how many rows the embedding has, so the id is not checked against it. "
            "Give the target to have it checked.",
            fields=("vocab_size",),
        )
        return
    field, size = found
    if token_id >= size:
        path = f"target.{field}" if whose == "target" else field
        yield Finding(
            "error",
            "mask_token_out_of_range",
            f"The id {show(token_id)} is not below the {whose}'s {field} {size}: the embedding has no such row, and the "
            "look-up faults or reads another row. Set an id of the target's vocabulary that the drafter was trained with.",
            fields=(place, path),
            see=("https://github.com/NVIDIA/Model-Optimizer/pull/1621",),
        )


def _vocab_size(config: Mapping[str, Any]) -> tuple[str, int] | None:
    for prefix, scope in _scopes(config):
        size = scope.get("vocab_size")
        if type(size) is int and size > 0:
            return prefix + "vocab_size", size
    return None


def _scopes(config: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield "", config
    for name in ("text_config", "transformer_layer_config"):
        scope = config.get(name)
        if isinstance(scope, Mapping):
            yield name + ".", scope


def _special_token_findings(
    token_id: int, config: Mapping[str, Any], target: Mapping[str, Any] | None
) -> Iterator[Finding]:
    for name in _SPECIAL_TOKENS:
        fields = tuple(
            owner + prefix + name
            for owner, of in (("", config), ("target.", target))
            if of is not None
            for prefix, scope in _scopes(of)
            if _names_token(scope.get(name), token_id)
        )
        if fields:
            short = name.removesuffix("_token_id")
            yield Finding(
                "warning",
                f"mask_token_equals_{short}",
                f"The id {show(token_id)} is the {short} token, too, which drafters are seldom trained to fill in: such "
                "ids are often placeholders, and acceptance drops. Check the id that the drafter was trained with.",
                fields=fields,
                see=("https://github.com/lightseekorg/TorchSpec/pull/133",),
                evidence="reported",
            )


def _names_token(value: object, token_id: int) -> bool:
    listed = value if isinstance(value, (list, tuple)) else (value,)
    return any(type(item) is int and item == token_id for item in listed)


def _differs(value: object, token_id: int) -> bool:
    if value is None:
        return False
    try:
        return int(value) != token_id  # type: ignore[call-overload, no-any-return]  # the point is to try
    except (TypeError, ValueError, OverflowError):
        return True


def _sglang_finding(
    reading: SglangReading, algorithm: str, token_id: int | None, severity: Severity
) -> Finding:
    theirs = {
        "id": f"reads {show(reading.token_id)}",
        "tokenizer": "finds none in the config and asks the tokenizer for a mask token",
        "error": "refuses the value",
    }[reading.outcome]
    ours = "no usable id" if token_id is None else show(token_id)
    return Finding(
        severity,
        "engine_dependent_mask_token",
        f"vLLM reads {ours}; SGLang ({algorithm}) {theirs}. "
        "Write the id that the drafter was trained with where both engines read it.",
        see=(SOURCE,),
    )


def _version_findings(
    built: Mapping[str, Any], method: str | None, token_id: int | None, engine: EngineRef
) -> Iterator[Finding]:
    order = behaviour(engine).mask_id_order
    if order is None:
        yield Finding(
            "warning",
            "mask_token_order_unknown",
            f"In which order {engine} reads the id is not known here; the answer is that of vLLM {NEWEST_VLLM}. "
            "Check it on that version, or upgrade.",
        )
    elif order.value != READING_ORDER:
        yield from _older_order_findings(built, token_id, engine, order.value, order.source)
    elif method in _OLD_ORDER_METHODS and token_id is not None and not _old_order_agrees(built, token_id):
        yield Finding(
            "info",
            "version_dependent_mask_token",
            "vLLM 0.16 read pard_token and ptd_token_id only, and would not find this id. "
            "Copy it to pard_token where older releases must serve the drafter.",
            fields=("pard_token", "ptd_token_id"),
        )


def _older_order_findings(
    built: Mapping[str, Any], token_id: int | None, engine: EngineRef, order: tuple[str, ...], source: str
) -> Iterator[Finding]:
    present = next((key for key in order if key in built), None)
    if present is not None and token_id is not None and not _differs_or_null(built[present], token_id):
        return
    reads = f"{present} = {show(built[present])}" if present is not None else "none of them here"
    yield Finding(
        "error",
        "version_dependent_mask_token",
        f"{engine} reads {', '.join(order)} only, so {reads}; the answer is what vLLM {NEWEST_VLLM} reads. "
        "Copy the id to a key which that version reads, or upgrade.",
        fields=order,
        see=(source,),
    )


def _old_order_agrees(built: Mapping[str, Any], token_id: int) -> bool:
    present = next((key for key in ("pard_token", "ptd_token_id") if key in built), None)
    return present is not None and not _differs_or_null(built[present], token_id)


def _differs_or_null(value: object, token_id: int) -> bool:
    return value is None or _differs(value, token_id)
