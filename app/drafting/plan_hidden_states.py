"""The hidden states of a pair: from where, how wide, in which order, and what the drafter expects of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from .layout import HiddenStatesPlan, Source, declared_total_width, sizes_of, source_for
from .pair import Pair
from .shapes import as_count, as_mapping, product

_NORM_FLAGS: Final = (
    "norm_before_fc",
    "norm_before_residual",
    "use_last_layernorm",
    "use_mtp_layernorm",
    "use_input_layernorm_in_first_layer",
)
# The drafter's token of row i is the target's token i + 1.
_SHIFTED: Final = frozenset({"eagle", "eagle3", "mtp"})


class PlannedHiddenStates(HiddenStatesPlan, frozen=True, kw_only=True):
    """The layout, and what a drafter expects of the rows.

    Attributes:
        token_shift: row i goes with the token at position i + ``token_shift``; ``None`` where not established.
        first_row: what the drafter wants in its first row, where that is special.
        history_tokens: how many tokens before the current one the drafter looks at, ``None`` for all of them.
        norm_flags: the drafter's own flags about norms, by dotted path.
        draft_hidden_size: width of the drafter's own states.
        draft_dtype: the dtype its config names.
        engine_order: capture points in the order in which the engine concatenates them.
    """

    token_shift: int | None = None
    first_row: str | None = None
    history_tokens: int | None = None
    norm_flags: Mapping[str, bool] = {}
    draft_hidden_size: int | None = None
    draft_dtype: str | None = None
    engine_order: tuple[int, ...] | None = None


def plan_hidden_states(pair: Pair) -> PlannedHiddenStates | None:
    """The layout for a pair, ``None`` for methods that read no hidden states (or for no method)."""
    source = source_for(pair.method, pair.target_shape)
    if source is None:
        return None
    layer_ids = points = None
    if source == "aux_layers":
        layer_ids, points = pair.taps.layer_ids, engine_points(pair)
    return PlannedHiddenStates(
        source=source,
        layer_ids=layer_ids,
        capture_points=points,
        convention=pair.taps.convention if source == "aux_layers" else None,
        norm="post" if source == "final" else "pre",
        width=_width(pair, source, points),
        **sizes_of(_width(pair, source, points), pair.dtype, pair.request.max_num_batched_tokens),
        token_shift=1 if pair.method in _SHIFTED else None,
        first_row="token0+zero feature" if pair.method == "pard2" else None,
        history_tokens=_history(pair.draft) if pair.has_draft else None,
        norm_flags=norm_flags(pair.draft),
        draft_hidden_size=pair.draft_shape.hidden_size,
        draft_dtype=pair.draft_shape.dtype,
        engine_order=tuple(sorted(points)) if points is not None and pair.engine.name == "vllm" else points,
    )


def engine_points(pair: Pair) -> tuple[int, ...] | None:
    """Capture points as this engine takes them: SGLang adds one to EAGLE-3's ids.

    Source: SGLang 0.5.23: models/llama.py, set_eagle3_layers_to_capture.
    """
    points = pair.taps.capture_points
    if pair.method == "extract_hidden_states" and pair.taps.layer_ids is None:
        # An export has no default: the layers must be named.
        return None
    if points is None or not shifts_eagle3_ids(pair):
        return points
    return tuple(point + 1 for point in points)


def shifts_eagle3_ids(pair: Pair) -> bool:
    """Whether this engine counts the drafter's EAGLE-3 ids as layer outputs."""
    return (
        pair.engine.name == "sglang"
        and pair.method in {"eagle3", "peagle"}
        and pair.taps.layer_ids is not None
        and pair.taps.convention == "entering_layer"
    )


def norm_flags(config: Mapping[str, Any]) -> dict[str, bool]:
    """The drafter's flags about norms, at the top level and inside ``eagle_config``."""
    found = {}
    for prefix, section in (("", config), ("eagle_config.", as_mapping(config.get("eagle_config")))):
        for key in _NORM_FLAGS:
            if isinstance(value := section.get(key), bool):
                found[prefix + key] = value
    return found


def target_width(pair: Pair) -> int | None:
    """The target's hidden size, from its config or from what the drafter says of it."""
    return pair.target_shape.hidden_size or as_count(pair.draft.get("target_hidden_size"))


def _width(pair: Pair, source: Source, points: tuple[int, ...] | None) -> int | None:
    width = target_width(pair)
    if source == "final":
        return width
    if source == "pre_hc_head":
        return product(pair.target_shape.streams, width)
    named = points or pair.taps.layer_ids
    counted = product(len(named), width) if named else None
    return counted if counted is not None else declared_total_width(pair.draft)


def _history(config: Mapping[str, Any]) -> int | None:
    """The window, when every layer of the drafter slides."""
    window = as_count(config.get("sliding_window"))
    kinds = config.get("layer_types")
    if window is None or config.get("use_sliding_window") is False:
        return None
    if isinstance(kinds, (list, tuple)) and kinds:
        return window if all(kind == "sliding_attention" for kind in kinds) else None
    return window if config.get("use_sliding_window") is True else None
