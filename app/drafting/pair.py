"""A target, a drafter and an engine, read once: what all checks of a plan look at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from .engines import EngineRef, engine_or_newest
from .methods import METHODS, MethodDetection, detect_method, engine_method
from .normalize import NormalizedConfig, normalize
from .plan_request import PlanRequest
from .shapes import ModelShape, as_count, as_mapping, lookup, normalise_dtype, read_shape
from .taps import Taps, read_taps

# Methods without a draft model of their own.
MODEL_FREE: Final = frozenset({"ngram", "suffix"})
# Methods whose weights come with the target.
BUNDLED: Final = frozenset({"mtp", "dspark", "extract_hidden_states"})
# Methods that ask the engine for a mask token id.
PARALLEL_DRAFTING: Final = frozenset(
    {"dflash", "dflash2", "dspark", "domino", "dflare", "pard", "pard2", "peagle"}
)
# Engines' own names for a family.
_ALIASES: Final = {"nextn": "mtp", "standalone": "draft_model", "ngram_gpu": "ngram"}
_NO_CONFIG: Final[Mapping[str, Any]] = {}


class Pair(Struct, frozen=True, kw_only=True):
    """What the request comes to.

    Attributes:
        request: the question.
        engine: with its version.
        target: the target's config, empty when it is not at hand.
        raw: the config that describes the drafter, as written: its own, or the target's for a bundled one.
        normalized: that config as the engine builds it, with the way back.
        detection: what the config says of the family.
        asked: the family that the request names, ``None`` when it names none or nothing known.
        method: the family that the plan is for.
        engine_method: what the engine wants to be told for it.
        target_shape: numbers of the target.
        draft_shape: numbers of the drafter.
        taps: the layers that the drafter names.
        depth: the target's layers, from its config or from what the drafter says of it.
        dtype: dtype that the target's hidden states will have.
        num_speculative_tokens: as requested, or as the engine takes it from the config.
    """

    request: PlanRequest
    engine: EngineRef
    target: Mapping[str, Any]
    raw: Mapping[str, Any]
    normalized: NormalizedConfig
    detection: MethodDetection
    asked: str | None
    method: str | None
    engine_method: str | None
    target_shape: ModelShape
    draft_shape: ModelShape
    taps: Taps
    depth: int | None
    dtype: str | None
    num_speculative_tokens: int | None

    @property
    def draft(self) -> Mapping[str, Any]:
        """The drafter's config as the engine builds it."""
        return self.normalized.config

    @property
    def has_draft(self) -> bool:
        """Whether the drafter has a config of its own."""
        return self.request.draft_config is not None

    @property
    def is_dflash2(self) -> bool:
        """DFlash2 is served as DFlash, but has demands of its own."""
        return self.method == "dflash2" or (self.method == "dflash" and self.detection.variant == "dflash2")


def read_pair(request: PlanRequest) -> Pair:
    """Reads both configs; never raises, whatever they hold."""
    engine = engine_or_newest(request.engine)
    target = as_mapping(request.target_config)
    raw = as_mapping(request.draft_config) if request.draft_config is not None else target
    normalized = normalize(raw)
    detection = detect_method(raw)
    asked = family_of(request.method)
    method = _method(request, detection, asked, engine)
    target_shape = read_shape(target)
    draft_shape = read_shape(normalized.config)
    depth = target_shape.num_layers or _depth_from_draft(normalized.config)
    taps = _taps(normalized, depth)
    return Pair(
        request=request,
        engine=engine,
        target=target,
        raw=raw,
        normalized=normalized,
        detection=detection,
        asked=asked,
        method=method,
        engine_method=engine_method(method, engine),
        target_shape=target_shape,
        draft_shape=draft_shape,
        taps=taps,
        depth=depth,
        dtype=normalise_dtype(request.dtype) or target_shape.dtype,
        num_speculative_tokens=request.num_speculative_tokens or default_tokens(method, normalized.config),
    )


def family_of(name: str | None) -> str | None:
    """The family that an engine's or a person's name for a method stands for, ``None`` for an unknown one."""
    if name is None:
        return None
    lowered = name.strip().lower()
    lowered = _ALIASES.get(lowered, lowered)
    if lowered in METHODS:
        return lowered
    return "mtp" if lowered.endswith("_mtp") else None


def block_size(config: Mapping[str, Any]) -> int | None:
    """Tokens of the drafter's block: top level, ``dspark_block_size``, or inside ``dflash_config``."""
    section = as_mapping(config.get("dflash_config"))
    for value in (config.get("block_size"), config.get("dspark_block_size"), section.get("block_size")):
        if (size := as_count(value)) is not None:
            return size
    return None


def mtp_depth(config: Mapping[str, Any]) -> int | None:
    """Tokens that the MTP layers predict in one go, ``None`` where the config does not say."""
    depth = as_count(
        lookup(config, "n_predict", "num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
    )
    if depth is not None:
        return depth
    for name, key in (("mtp_config", "num_nextn_predict_layers"), ("mtp", "num_hidden_layers")):
        if (depth := as_count(as_mapping(lookup(config, name)).get(key))) is not None:
            return depth
    return None


def default_tokens(method: str | None, config: Mapping[str, Any]) -> int | None:
    """K where the request has none: vLLM takes DSpark's block size or the number of MTP layers.

    Source: vLLM 0.33: vllm/config/speculative.py.
    """
    if method == "dspark":
        return block_size(config)
    return mtp_depth(config) if method == "mtp" else None


def _method(
    request: PlanRequest, detection: MethodDetection, asked: str | None, engine: EngineRef
) -> str | None:
    detected = detection.method
    if request.draft_config is None and detected not in BUNDLED:
        # A plain target is no drafter, whatever family its class would be as one.
        detected = None
    if asked is None or detected is None:
        return asked or detected
    return detected if speaks_of(asked, detected, engine) else asked


def speaks_of(asked: str, detected: str, engine: EngineRef) -> bool:
    """Whether an asked family is the detected one, or the name under which the engine runs it."""
    return asked in {detected, family_of(engine_method(detected, engine))} or {asked, detected} == {
        "dflash",
        "dflash2",
    }


def _depth_from_draft(config: Mapping[str, Any]) -> int | None:
    """``num_target_layers`` counts layers for some trainers and captured layers for others: only a clear one counts."""
    stated = as_count(config.get("target_num_hidden_layers"))
    if stated is not None:
        return stated
    counted = as_count(config.get("num_target_layers"))
    named = read_taps(config).layer_ids
    if counted is None or named is None or counted == len(named) or counted <= max(named):
        return None
    return counted


def _taps(normalized: NormalizedConfig, depth: int | None) -> Taps:
    taps = read_taps(normalized.config, depth)
    if normalized.translated_from == "speculators" and taps.convention == "entering_layer" and taps.place:
        return Taps(taps.layer_ids, taps.capture_points, "speculators", normalized.raw_place(taps.place))
    return taps
