"""Which layers of the target a drafter reads, and the many ways in which configs say so.

The engine's *capture point* L is the residual stream entering decoder layer L; point n (the number of layers) is the
last layer's output before the final norm. Drafters' files number layers in several conventions; each is one row of
``_PLACES``. Order and shifts: vLLM 0.33: vllm/v1/worker/gpu/spec_decode/eagle/eagle3_utils.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from .shapes import as_int_list, as_mapping, as_text

Convention: TypeAlias = Literal[
    "entering_layer",  # EAGLE-3: the id is the capture point
    "layer_output",  # z-lab and its heirs: id L is the output of layer L, the engine captures L + 1
    "layer_input",  # DeepSeek V4.1: what layer L's attention reads
    "speculators",  # speculators: ids are capture points in the version that the engine reads
    "from_the_end",  # PARD-2: negative, counted from the last layer
    "position",  # DFlare, converted: positions in the list of captured layers
    "engine_default",  # the file says nothing, the engine has a rule of its own
]


class Taps(Struct, frozen=True):
    """Layer ids as written, and what they mean.

    Attributes:
        layer_ids: the ids of the file, ``None`` where it names none.
        capture_points: the engine's capture points in the file's order, ``None`` where they can't be said.
        convention: how the ids are numbered.
        place: dotted path of the ids in the file, ``None`` where it names none.
        engine_reads: whether vLLM looks at this place; where it does not, it captures its default instead.
    """

    layer_ids: tuple[int, ...] | None
    capture_points: tuple[int, ...] | None
    convention: Convention
    place: str | None
    engine_reads: bool = True


class _Place(Struct, frozen=True):
    section: str | None
    key: str
    shift: int
    convention: Convention

    @property
    def path(self) -> str:
        return f"{self.section}.{self.key}" if self.section else self.key

    def read(self, config: Mapping[str, Any]) -> tuple[int, ...] | None:
        holder = as_mapping(config.get(self.section)) if self.section else config
        return as_int_list(holder.get(self.key))


# In the order in which vLLM asks: the first that names ids wins.
_PLACES = (
    _Place(None, "eagle_aux_hidden_state_layer_ids", 0, "entering_layer"),
    _Place("dflash_config", "target_layer_ids", 1, "layer_output"),
    _Place(None, "dspark_target_layer_ids", 1, "layer_output"),
    _Place(None, "target_layer_ids", 1, "layer_output"),
    _Place("dflash_config", "layer_ids", 0, "entering_layer"),
    _Place("eagle_config", "layer_ids", 0, "entering_layer"),
)
# Places that say something to people and trainers, and nothing to vLLM.
_UNREAD_PLACES = (
    _Place("eagle_config", "eagle_aux_hidden_state_layer_ids", 0, "entering_layer"),
    _Place("dflare_config", "target_layer_ids", 1, "layer_output"),
    _Place("dspark_config", "target_layer_ids", 1, "layer_output"),
    _Place(None, "pard2_target_layers", 0, "from_the_end"),
)
_SPECULATORS = _Place(None, "aux_hidden_state_layer_ids", 0, "speculators")


def vllm_capture_ids(config: Mapping[str, Any]) -> tuple[int, ...] | None:
    """What vLLM's look-up gives on this config as it stands, ``None`` where it finds no ids. Nothing is checked."""
    found = _engine_place(config)
    if found is None:
        return None
    place, ids = found
    return tuple(layer + _shift(place, config) for layer in ids)


def default_capture_points(num_layers: int) -> tuple[int, ...] | None:
    """The rule of vLLM for drafters that name no layers: ``(2, n // 2, n - 3)``; ``None`` where that makes no sense."""
    points = (2, num_layers // 2, num_layers - 3)
    return points if len(set(points)) == 3 and min(points) >= 0 else None


def read_taps(config: Mapping[str, Any], num_layers: int | None = None) -> Taps:
    """Reads the layers that a drafter wants.

    Args:
        config: the drafter's config; in the speculators format as written, else as the engine builds it.
        num_layers: the target's decoder layers, for the engine's default.
    """
    if (ids := _SPECULATORS.read(config)) is not None and "transformer_layer_config" in config:
        return Taps(ids, ids, "speculators", _SPECULATORS.path)
    found = _engine_place(config)
    if found is not None:
        return _mapped(*found, config)
    for place in _UNREAD_PLACES:
        if (unread := place.read(config)) is not None:
            points = None if min(unread) < 0 else _default(num_layers)
            convention = "from_the_end" if min(unread) < 0 else place.convention
            return Taps(unread, points, convention, place.path, engine_reads=False)
    return Taps(None, _default(num_layers), "engine_default", None)


def named_taps(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Every place of the file that names layers, read by the engine or not, with the capture points it stands for.

    Left out are negative ids and DFlare's positions, which stand for nothing that could be compared.
    """
    named = {}
    for place in (*_PLACES, *_UNREAD_PLACES, _SPECULATORS):
        ids = place.read(config)
        if ids is None or min(ids) < 0 or (place.section == "dflash_config" and _is_dflare(config)):
            continue
        named[place.path] = tuple(layer + _shift(place, config) for layer in ids)
    return named


def unshifted_pair(config: Mapping[str, Any]) -> tuple[str, str] | None:
    """Two places that hold the same numbers although one counts outputs and the other inputs, else ``None``."""
    entering = _PLACES[0].read(config)
    if entering is None or _is_dflare(config):
        return None
    for place in _PLACES[1:4]:
        if _shift(place, config) == 1 and place.read(config) == entering:
            return _PLACES[0].path, place.path
    return None


def _engine_place(config: Mapping[str, Any]) -> tuple[_Place, tuple[int, ...]] | None:
    for place in _PLACES:
        if (ids := place.read(config)) is not None:
            return place, ids
    return None


def _mapped(place: _Place, ids: tuple[int, ...], config: Mapping[str, Any]) -> Taps:
    if min(ids) < 0:
        return Taps(ids, None, "from_the_end", place.path)
    shift = _shift(place, config)
    points = tuple(layer + shift for layer in ids)
    if place.section == "dflash_config" and _is_dflare(config):
        return Taps(ids, None, "position", place.path)
    convention: Convention = "layer_input" if place.shift != shift else place.convention
    return Taps(ids, points, convention, place.path)


def _shift(place: _Place, config: Mapping[str, Any]) -> int:
    """V4.1 reads layer inputs, so its ids are capture points although V4's are not."""
    if place.key == "dspark_target_layer_ids" and _is_v41(config):
        return 0
    return place.shift


def _is_v41(config: Mapping[str, Any]) -> bool:
    return (as_text(config.get("model_type")) or "").startswith("deepseek_v41")


def _is_dflare(config: Mapping[str, Any]) -> bool:
    return isinstance(config.get("dflare_config"), Mapping)


def _default(num_layers: int | None) -> tuple[int, ...] | None:
    return default_capture_points(num_layers) if num_layers is not None else None
