"""Checks of whether two models fit: vocabulary, widths, depth, dtypes, mask token id."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from .catalogue import finding
from .findings import Finding
from .layout import LayoutError, check_declared_widths
from .mask_token import MaskTokenError
from .mask_token_answer import MaskTokenAnswer
from .pair import PARALLEL_DRAFTING, Pair
from .plan_hidden_states import PlannedHiddenStates
from .shapes import as_count, as_mapping, dtype_bytes

_PROJECTED_FROM_OWN_WIDTH: Final = frozenset(
    {"eagle", "eagle3", "peagle", "dflash", "dflash2", "dspark", "domino"}
)


def model_findings(pair: Pair, hidden: PlannedHiddenStates | None) -> Iterator[Finding]:
    """All findings about how two models fit."""
    if not pair.target:
        yield finding("target_missing", "target")
    if pair.has_draft:
        yield from _vocabulary(pair)
        yield from _widths(pair, hidden)
        yield from _depth(pair)
        yield from _draft_dtype(pair)
    yield from _dtype(pair)
    yield from _anchor(pair)
    if pair.method == "pard2":
        yield finding("pard2_first_row", "method")


def mask_token_findings(
    pair: Pair, answer: MaskTokenAnswer | None, failure: MaskTokenError | None
) -> Iterator[Finding]:
    """What a pair adds to the findings of the mask token answer: a missing id, and the trained one to compare."""
    if pair.method not in PARALLEL_DRAFTING:
        return
    if failure is not None:
        yield Finding("error", failure.code, failure.detail, ("draft",) if pair.has_draft else ("target",))
        if not pair.has_draft and failure.code == "mask_token_missing":
            yield finding("mask_token_override_required", "target", method=pair.method)
    elif answer is not None:
        yield from _trained_id(pair, answer)


def _trained_id(pair: Pair, answer: MaskTokenAnswer) -> Iterator[Finding]:
    trained = pair.request.trained_mask_token_id
    declared = _shown(answer.mask_token_id)
    if trained is None:
        yield finding("mask_token_unverified", answer.source, declared=declared, source=answer.source)
    elif trained != answer.mask_token_id:
        yield finding(
            "mask_token_differs_from_training",
            answer.source,
            declared=declared,
            source=answer.source,
            trained=_shown(trained),
        )


def _vocabulary(pair: Pair) -> Iterator[Finding]:
    draft, target = pair.draft_shape.vocab_size, pair.target_shape.vocab_size
    if draft is None or target is None or draft == target:
        return
    yield finding(
        "vocab_mismatch",
        "draft.vocab_size",
        "target.vocab_size",
        severity="error" if pair.engine_method == "draft_model" else "warning",
        draft=draft,
        target=target,
    )


def _widths(pair: Pair, hidden: PlannedHiddenStates | None) -> Iterator[Finding]:
    target = pair.target_shape.hidden_size
    if hidden is None or target is None:
        return
    try:
        check_declared_widths(pair.draft, hidden, target)
    except LayoutError as error:
        yield finding("width_mismatch", "draft.target_hidden_size", "target.hidden_size", reason=error.detail)
        return
    own = pair.draft_shape.hidden_size
    declared = as_count(pair.draft.get("target_hidden_size"))
    if pair.method in _PROJECTED_FROM_OWN_WIDTH and declared is None and own is not None and own != target:
        yield finding(
            "hidden_size_mismatch", "draft.hidden_size", "target.hidden_size", draft=own, target=target
        )


def _depth(pair: Pair) -> Iterator[Finding]:
    target = pair.target_shape.num_layers
    taps = pair.taps.layer_ids
    stated = as_count(pair.draft.get("target_num_hidden_layers"))
    field = "target_num_hidden_layers"
    if stated is None:
        stated, field = as_count(pair.draft.get("num_target_layers")), "num_target_layers"
        if taps is None or stated == len(taps):
            return
    if stated is not None and target is not None and stated != target:
        yield finding(
            "target_depth_mismatch", f"draft.{field}", "target.num_hidden_layers", draft=stated, target=target
        )


def _draft_dtype(pair: Pair) -> Iterator[Finding]:
    draft = pair.draft_shape.dtype
    # Quantised dtypes are no dtype of activations, so only those with a known width are compared.
    if draft is None or pair.dtype is None or draft == pair.dtype or (dtype_bytes(draft) or 0) < 2:
        return
    yield finding("draft_dtype_mismatch", "draft.dtype", "dtype", draft=draft, target=pair.dtype)


def _dtype(pair: Pair) -> Iterator[Finding]:
    if pair.is_dflash2 and pair.dtype is not None and pair.dtype != "bfloat16":
        yield finding("dtype_incompatible", "dtype", dtype=pair.dtype)


def _anchor(pair: Pair) -> Iterator[Finding]:
    sections = (pair.draft, as_mapping(pair.draft.get("dflash_config")), pair.raw)
    if (
        pair.engine.name == "vllm"
        and pair.engine_method == "dflash"
        and any(section.get("sample_from_anchor") is True for section in sections)
    ):
        yield finding("sample_from_anchor_unsupported", "sample_from_anchor")


def _shown(token_id: int) -> str:
    return str(token_id) if token_id.bit_length() <= 64 else "too large to show"
