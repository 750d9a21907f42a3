"""Which layers vLLM captures, in which order it stores them, and in which order they were asked for."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from ...drafting.layout import LayoutError, check_points


def asked_points(layer_ids: Any, num_layers: int) -> tuple[int, ...]:
    """The capture points of ``eagle_aux_hidden_state_layer_ids``, in the order written.

    vLLM checks nothing: it dies at the first request, or stores one layer under another's number. Point L is the
    stream that enters layer L; point n the last layer's output before the final norm.

    Raises:
        ValueError: no list, no integers, repeated ids, or ids outside ``[0, num_layers]``.
    """
    name = "eagle_aux_hidden_state_layer_ids"
    if not isinstance(layer_ids, Sequence) or isinstance(layer_ids, str) or not layer_ids:
        raise ValueError(f"{name} must list the layers to capture")
    try:
        points = tuple(operator.index(one) for one in layer_ids)
    except TypeError as error:
        raise ValueError(f"{name} must list integers") from error
    try:
        check_points(points, num_layers)
    except LayoutError as error:
        raise ValueError(f"{name}: {error.detail}") from error
    return points


def stored_positions(points: Sequence[int]) -> tuple[int, ...]:
    """For each point asked for, where vLLM stores it: it keeps the ids sorted, whatever order they were given in.

    Source: vLLM 0.32, ``EagleModelMixin`` (the ids as a sorted tuple).
    """
    stored = sorted(points)
    return tuple(stored.index(point) for point in points)
