"""Checks of the layers that a drafter reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .catalogue import finding
from .findings import Finding
from .pair import Pair
from .plan_hidden_states import PlannedHiddenStates, shifts_eagle3_ids
from .taps import default_capture_points, named_taps, unshifted_pair


def layer_findings(pair: Pair, hidden: PlannedHiddenStates | None) -> Iterator[Finding]:
    """All findings about layers, widths and norms of the hidden states."""
    if hidden is None:
        if pair.method is not None:
            yield finding("no_hidden_states", "method", method=pair.method)
        return
    if hidden.source == "pre_hc_head" and pair.target_shape.streams is None:
        yield finding("streams_unknown", "target.hc_mult")
    flags = [
        path for path in hidden.norm_flags if path.endswith("norm_before_fc") and hidden.norm_flags[path]
    ]
    if flags:
        yield finding("norm_flags_needed", *flags, flags=", ".join(flags))
    if hidden.source == "aux_layers":
        yield from _places(pair)
        yield from _convention(pair)
        yield from _points(pair, hidden)
        yield from _export(pair)


def _places(pair: Pair) -> Iterator[Finding]:
    pairs = unshifted_pair(pair.draft)
    if pairs is not None:
        first, second = pairs
        yield finding("tap_ids_unshifted", first, second, first=first, second=second)
        return
    named = named_taps(pair.draft)
    if len(set(named.values())) > 1:
        yield finding("tap_ids_disagree", *named, places=", ".join(named), first=next(iter(named)))


def _convention(pair: Pair) -> Iterator[Finding]:
    taps = pair.taps
    field = taps.place or "eagle_aux_hidden_state_layer_ids"
    if taps.convention == "speculators" and taps.capture_points is not None:
        yield finding("tap_ids_versioned", field, points=_shown(taps.capture_points))
    if shifts_eagle3_ids(pair):
        yield finding("tap_ids_engine_dependent", field)
    if taps.layer_ids is not None and taps.convention in {"from_the_end", "position"}:
        yield finding(
            "tap_ids_unmappable",
            field,
            ids=_shown(taps.layer_ids),
            place=field,
            convention=taps.convention.replace("_", " "),
            instead=_instead(pair),
        )
    elif not taps.engine_reads:
        yield finding(
            "tap_ids_not_read",
            field,
            place=field,
            ids=_shown(taps.layer_ids or ()),
            default=_default(pair),
        )
    elif taps.layer_ids is None and pair.method != "extract_hidden_states":
        yield finding("tap_ids_defaulted", field, points=_default(pair))


def _points(pair: Pair, hidden: PlannedHiddenStates) -> Iterator[Finding]:
    points = hidden.capture_points
    field = pair.taps.place or "eagle_aux_hidden_state_layer_ids"
    if points is None:
        return
    if len(set(points)) != len(points):
        yield finding("tap_ids_duplicated", field, points=_shown(points))
    elif list(points) != sorted(points) and pair.engine.name == "vllm":
        yield finding("tap_ids_unsorted", field)
    if pair.depth is None:
        return
    outside = [point for point in points if not 0 <= point <= pair.depth]
    if outside:
        yield finding(
            "tap_out_of_range",
            field,
            "target.num_hidden_layers",
            points=_shown(outside),
            num_layers=pair.depth,
        )
    if pair.depth in points:
        yield finding("last_layer_tap", field, "target.num_hidden_layers")


def _export(pair: Pair) -> Iterator[Finding]:
    if pair.method != "extract_hidden_states" or pair.engine.name != "vllm":
        return
    if pair.taps.layer_ids is None:
        yield finding("extract_layers_missing", "draft.eagle_aux_hidden_state_layer_ids")
    if pair.request.enable_prefix_caching is not False:
        yield finding("prefix_caching_shortens_rows", "enable_prefix_caching")


def _instead(pair: Pair) -> str:
    """What vLLM's rule makes of negative ids that it does read."""
    taps = pair.taps
    if taps.layer_ids is None or not taps.engine_reads or taps.place != "target_layer_ids":
        return ""
    return f"; vLLM's rule adds one and makes {_shown([layer + 1 for layer in taps.layer_ids])} of them"


def _default(pair: Pair) -> str:
    points = default_capture_points(pair.depth) if pair.depth is not None else None
    return _shown(points) if points is not None else "(2, n // 2, n - 3)"


def _shown(ids: Sequence[int]) -> str:
    """A list for people; a hostile one is cut."""
    return str(list(ids)) if len(ids) <= 16 else f"{list(ids[:16])}... ({len(ids)} ids)"
