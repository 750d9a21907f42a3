"""The hidden states that a drafter consumes: from where in the target, how wide, before or after the final norm.

The same object configures what the worker captures and what ``/v1/drafting-plan`` reports, so that there is one place
for widths and layer ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

from .methods import detect_method
from .normalize import normalize
from .shapes import ModelShape, as_count, dtype_bytes, lookup, normalise_dtype, product, read_shape
from .taps import Convention, Taps, read_taps

Source: TypeAlias = Literal["final", "aux_layers", "pre_hc_head"]
Norm: TypeAlias = Literal["pre", "post"]

_READ_LAYERS: Final = frozenset(
    {"dflash", "dflash2", "dspark", "domino", "dflare", "eagle3", "peagle", "pard2", "extract_hidden_states"}
)
_READ_THE_END: Final = frozenset({"eagle", "mtp", "medusa", "mlp_speculator"})
# Targets that keep the residual streams before they are joined, and for which methods.
# Source: vLLM 0.33: vllm/models/deepseek_v4, deepseek_v41, qwen4_exp.
_STREAM_TARGETS: Final = (
    ("deepseek_v4", "DeepseekV4", frozenset({"mtp", "eagle"})),
    ("qwen4_exp", "Qwen4Exp", frozenset({"mtp"})),
)


class LayoutError(ValueError):
    """The target can't serve the hidden states that were asked for.

    Attributes:
        code: ``layer_ids_not_distinct``, ``layer_id_out_of_range``, ``layer_ids_missing``, ``layer_ids_unmappable``,
            ``layer_ids_not_read``, ``hc_mult_missing``, ``hidden_size_missing``, ``num_layers_missing``,
            ``width_mismatch``, ``size_unusable``.
        detail: one sentence that says what to do.
    """

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


class HiddenStatesPlan(Struct, frozen=True, kw_only=True):
    """Rows of hidden states: ``[token, hidden]``, one row per token; ``None`` where an input is missing.

    Attributes:
        source: ``final`` (after the final norm), ``aux_layers`` (one or more layers side by side in one row, in the
            order of ``layer_ids``), ``pre_hc_head`` (all residual streams before they are collapsed).
        layer_ids: the drafter's own numbers.
        capture_points: point L is the stream entering decoder layer L; n is the last layer's output before the norm.
        convention: how ``layer_ids`` are numbered.
        norm: whether the final norm was applied (``post``) or not (``pre``).
        width: elements of a row.
        dtype: element type, e.g. ``bfloat16``.
        bytes_per_token: bytes of a row.
        rows: rows of the buffer (``max_num_batched_tokens``).
        buffer_bytes: ``rows`` x ``bytes_per_token``.
        axes: names of the axes, outermost first.
    """

    source: Source
    layer_ids: tuple[int, ...] | None = None
    capture_points: tuple[int, ...] | None = None
    convention: Convention | None = None
    norm: Norm | None = None
    width: int | None = None
    dtype: str | None = None
    bytes_per_token: int | None = None
    rows: int | None = None
    buffer_bytes: int | None = None
    axes: tuple[str, ...] = ("token", "hidden")


class CaptureLayout(HiddenStatesPlan, frozen=True, kw_only=True):
    """A plan that a worker can follow: its width and, for ``aux_layers``, its capture points are known."""

    width: int
    hidden_size: int
    num_layers: int


def capture_layout(
    target_config: Mapping[str, Any],
    *,
    capture: Source | None = None,
    aux_layer_ids: Sequence[int] | None = None,
    draft_config: Mapping[str, Any] | None = None,
    dtype: str | None = None,
    rows: int | None = None,
) -> CaptureLayout:
    """What to capture from a target.

    Args:
        target_config: the target's ``config.json``; nested ``text_config`` is understood.
        capture: from where; ``None``: ``aux_layers`` when ``aux_layer_ids`` are given, else where the drafter's method
            reads, else ``final``.
        aux_layer_ids: capture points, in the order wanted; they go before the drafter's.
        draft_config: the drafter's ``config.json`` as written, for its method, its layers and its widths.
        dtype: dtype of the rows, for the sizes; ``None``: the target config's.
        rows: rows of the buffer, for its size.

    Raises:
        LayoutError: the target can't serve that.
    """
    shape = read_shape(target_config)
    hidden_size = _known(shape.hidden_size, "hidden_size_missing", "hidden_size")
    num_layers = _known(shape.num_layers, "num_layers_missing", "num_hidden_layers")
    draft = normalize(draft_config).config if draft_config is not None else None
    taps = read_taps(draft, num_layers) if draft is not None else None
    if aux_layer_ids is not None:
        points = tuple(aux_layer_ids)
        taps = Taps(points, points, "entering_layer", None)
        capture = capture or "aux_layers"
    detected = detect_method(draft_config).method if draft_config is not None else None
    source = capture or source_for(detected, shape) or "final"
    layer_ids = points_or_none = None
    if source == "aux_layers":
        layer_ids, points_or_none = _checked_points(taps, num_layers)
    layout = CaptureLayout(
        source=source,
        layer_ids=layer_ids,
        capture_points=points_or_none,
        convention=taps.convention if taps is not None and source == "aux_layers" else None,
        norm="post" if source == "final" else "pre",
        width=_width(source, shape, hidden_size, points_or_none),
        hidden_size=hidden_size,
        num_layers=num_layers,
    )
    if draft is not None:
        check_declared_widths(draft, layout, hidden_size)
    return sized_capture(layout, dtype or shape.dtype, rows)


def source_for(method: str | None, target: ModelShape) -> Source | None:
    """Where a method reads the target, ``None`` for methods that read no hidden states."""
    if method in _READ_LAYERS:
        return "aux_layers"
    if method not in _READ_THE_END:
        return None
    for model_type, architecture, methods in _STREAM_TARGETS:
        named = any(name.startswith(model_type) for name in target.model_types)
        named = named or any(name.startswith(architecture) for name in target.architectures)
        if named and method in methods:
            return "pre_hc_head"
    return "final"


def sized_capture(layout: CaptureLayout, dtype: str | None, rows: int | None) -> CaptureLayout:
    """The layout with dtype and sizes filled in."""
    sizes = sizes_of(layout.width, dtype, rows)
    return msgspec.structs.replace(layout, **sizes)


def sizes_of(width: int | None, dtype: str | None, rows: int | None) -> dict[str, Any]:
    """``dtype``, ``bytes_per_token``, ``rows`` and ``buffer_bytes`` of a buffer."""
    name = normalise_dtype(dtype)
    bytes_per_token = product(width, dtype_bytes(name))
    return {
        "dtype": name,
        "bytes_per_token": bytes_per_token,
        "rows": rows,
        "buffer_bytes": product(bytes_per_token, rows),
    }


def check_points(points: Sequence[int], num_layers: int) -> None:
    """Refuses ids that repeat or lie outside ``[0, n]``; vLLM 0.32 silently captures another layer for some.

    Raises:
        LayoutError: ``layer_ids_not_distinct`` or ``layer_id_out_of_range``.
    """
    if len(set(points)) != len(points):
        raise LayoutError(
            "layer_ids_not_distinct",
            f"Capture points {_shown(points)} repeat a layer; name every layer once.",
        )
    outside = [point for point in points if not 0 <= point <= num_layers]
    if outside:
        raise LayoutError(
            "layer_id_out_of_range",
            f"Capture points {_shown(outside)} lie outside [0, {num_layers}] of a target with {num_layers} layers; "
            "check whether the ids count layer inputs or layer outputs (an output id is one less).",
        )


def check_declared_widths(
    draft_config: Mapping[str, Any], layout: HiddenStatesPlan, hidden_size: int
) -> None:
    """Compares the widths that a drafter declares with what the target gives.

    Raises:
        LayoutError: ``width_mismatch``.
    """
    wanted = as_count(draft_config.get("target_hidden_size"))
    if wanted is not None and wanted != hidden_size:
        raise LayoutError(
            "width_mismatch",
            f"The drafter was made for a target of hidden size {wanted}, this one has {hidden_size}; "
            "pair it with the target that it was trained on.",
        )
    total = declared_total_width(draft_config)
    if layout.source == "aux_layers" and total is not None and layout.width not in {None, total}:
        raise LayoutError(
            "width_mismatch",
            f"The drafter's projection takes rows of {total} elements, the captured layers give {layout.width}; "
            "check the number of layers and the target.",
        )
    taps = as_count(draft_config.get("num_aux_layers"))
    if layout.capture_points is not None and taps is not None and taps != len(layout.capture_points):
        raise LayoutError(
            "width_mismatch",
            f"The drafter declares {taps} captured layers, its ids name {len(layout.capture_points)}; "
            "its projection will not fit the rows.",
        )


def declared_total_width(draft_config: Mapping[str, Any]) -> int | None:
    """The whole input width of the drafter's projection, where its config states it (PARD-2 does)."""
    return as_count(lookup(draft_config, "pard2_target_dim", "target_feat_dim"))


def _checked_points(taps: Taps | None, num_layers: int) -> tuple[tuple[int, ...] | None, tuple[int, ...]]:
    if taps is None or (taps.layer_ids is None and taps.capture_points is None):
        raise LayoutError(
            "layer_ids_missing",
            "No layers are named to capture; give capture points or a drafter that names some.",
        )
    if not taps.engine_reads:
        raise LayoutError(
            "layer_ids_not_read",
            f"The drafter's ids {_shown(taps.layer_ids or ())} stand in {taps.place}, whose numbering engines do not "
            "agree on; give the capture points explicitly.",
        )
    if taps.capture_points is None:
        raise LayoutError(
            "layer_ids_unmappable",
            f"The drafter's ids {_shown(taps.layer_ids or ())} are numbered in a way ({taps.convention}) that has no "
            "agreed capture points; give the capture points explicitly.",
        )
    if not taps.capture_points:
        raise LayoutError("layer_ids_missing", "The list of layers to capture is empty; name at least one.")
    check_points(taps.capture_points, num_layers)
    return taps.layer_ids, taps.capture_points


def _width(source: Source, shape: ModelShape, hidden_size: int, points: tuple[int, ...] | None) -> int:
    if source == "pre_hc_head":
        streams = _known(shape.streams, "hc_mult_missing", "hc_mult")
        width = product(streams, hidden_size)
    else:
        width = product(len(points) if points is not None else 1, hidden_size)
    if width is None:
        raise LayoutError("size_unusable", "The config's sizes are too large to be true; check it.")
    return width


def _known(value: int | None, code: str, name: str) -> int:
    if value is None:
        raise LayoutError(
            code,
            f"The target's config has no usable {name}; "
            + (
                "only targets with several residual streams have a state before the head that joins them."
                if name == "hc_mult"
                else "give a target whose config states it."
            ),
        )
    return value


def _shown(ids: Sequence[int]) -> str:
    """A list for people; a hostile one is cut."""
    return str(list(ids)) if len(ids) <= 16 else f"{list(ids[:16])!s:.200}... ({len(ids)} ids)"
