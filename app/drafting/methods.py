"""Which family a drafter belongs to, from what its ``config.json`` says, and what an engine wants to be told.

``architectures`` alone does not tell: exporters label DSpark and Domino drafters ``DFlashDraftModel``, and P-EAGLE
heads ``LlamaForCausalLM``. So the rules go from what only one family writes to what several write, and every answer
carries the fields it rests on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from msgspec import Struct

from .engines import EngineRef, behaviour, engine_or_newest

METHODS: Final = (
    "dflash",
    "dflash2",
    "dspark",
    "domino",
    "dflare",
    "pard",
    "pard2",
    "peagle",
    "eagle",
    "eagle3",
    "mtp",
    "medusa",
    "mlp_speculator",
    "draft_model",
    "ngram",
    "suffix",
    "extract_hidden_states",
)

# Parts of class names (lower case, no underscores), the more special first.
_LABELS: Final = (
    ("dflare", "dflare"),
    ("domino", "domino"),
    ("dspark", "dspark"),
    ("dflash", "dflash"),
    ("museglimmerassistant", "dflash"),
    ("peagle", "peagle"),
    ("pard2", "pard2"),
    ("pard", "pard"),
    ("eagle3", "eagle3"),
    ("eagle", "eagle"),
    ("medusa", "medusa"),
    ("mlpspeculator", "mlp_speculator"),
    ("extracthiddenstates", "extract_hidden_states"),
    ("mtp", "mtp"),
)
# Vocabulary of model_type that is a method by itself.
_MODEL_TYPE_METHODS: Final = {
    "ngram": "ngram",
    "suffix": "suffix",
    "extract_hidden_states": "extract_hidden_states",
    "medusa": "medusa",
    "mlp_speculator": "mlp_speculator",
    "eagle": "eagle",
    "eagle3": "eagle3",
}
# Families whose checkpoints carry MTP layers that their config.json does not mention.
_SILENT_MTP_MODEL_TYPES: Final = frozenset({"mimo_v2_flash"})
_MTP_COUNTS: Final = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", "n_predict")
_MTP_SECTIONS: Final = ("mtp_config", "mtp")
_PLAIN_MODEL_SUFFIXES: Final = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")
_HEAD_SIZES: Final = ("markov_rank",)
_HEAD_SWITCHES: Final = ("enable_confidence_head", "use_confidence_head")


class MethodDetection(Struct, frozen=True):
    """What the file says about the family.

    Attributes:
        method: one of ``METHODS``, ``None`` when nothing tells.
        evidence: the fields that decided.
        contradictions: fields that say something else, as ``field: what it says``.
        variant: ``dflash2`` for a ``dflash`` drafter with DFlash2's architecture.
    """

    method: str | None
    evidence: tuple[str, ...] = ()
    contradictions: tuple[str, ...] = ()
    variant: str | None = None


class _View(NamedTuple):
    """The places of a file that the rules look at, all safe to read."""

    top: Mapping[str, Any]
    text: Mapping[str, Any]
    dflash: Mapping[str, Any]
    architectures: tuple[str, ...]
    model_type: str
    label: str | None


def detect_method(raw: Mapping[str, Any]) -> MethodDetection:
    """The family of a drafter, from its raw ``config.json``; never raises, whatever the values are."""
    view = _view(raw)
    for rule in _RULES:
        found = rule(view)
        if found is not None:
            method, evidence = found
            return MethodDetection(method, evidence, _contradictions(view, method), _variant(view, method))
    return MethodDetection(None)


def engine_method(method: str | None, engine: EngineRef | None = None) -> str | None:
    """What the engine wants to be told for a family (vLLM's ``method``, SGLang's algorithm).

    ``None`` where that version refuses the family, where it is not known what it does, or without a family.
    """
    known = behaviour(engine_or_newest(engine)).methods
    return known.value.get(method) if known is not None and method is not None else None


def engine_refuses(method: str, engine: EngineRef | None = None) -> bool | None:
    """Whether the engine's version is known to refuse the family; ``None`` when that is not known."""
    known = behaviour(engine_or_newest(engine)).methods
    if known is None or method not in known.value:
        return None
    return known.value[method] is None


_Found = tuple[str, tuple[str, ...]] | None


def _view(raw: Mapping[str, Any]) -> _View:
    listed = raw.get("architectures")
    names = listed if isinstance(listed, (list, tuple)) else (listed,)
    architectures = tuple(name for name in names if isinstance(name, str))
    model_type = raw.get("model_type")
    return _View(
        top=raw,
        text=_section(raw, "text_config"),
        dflash=_section(raw, "dflash_config"),
        architectures=architectures,
        model_type=model_type if isinstance(model_type, str) else "",
        label=_label(" ".join(architectures)),
    )


def _section(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = raw.get(name)
    return section if isinstance(section, Mapping) else {}


def _label(name: str) -> str | None:
    plain = name.lower().replace("_", "").replace("-", "")
    return next((method for part, method in _LABELS if part in plain), None)


def _positive(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0


def _by_speculators_type(view: _View) -> _Found:
    kind = view.top.get("speculators_model_type")
    return (kind, ("speculators_model_type",)) if isinstance(kind, str) and kind in METHODS else None


def _by_projector(view: _View) -> _Found:
    projector = view.dflash.get("projector_type")
    if isinstance(projector, str) and projector in {"domino", "dspark"}:
        return projector, ("dflash_config.projector_type",)
    return None


def _dflare(view: _View) -> _Found:
    evidence = _label_evidence(view, "dflare")
    if _section(view.top, "dflare_config"):
        evidence += ("dflare_config",)
    return ("dflare", evidence) if evidence else None


def _domino(view: _View) -> _Found:
    evidence = _label_evidence(view, "domino")
    return ("domino", evidence) if evidence else None


def _pard2(view: _View) -> _Found:
    evidence = _label_evidence(view, "pard2")
    if view.top.get("spd_type") == "pard2":
        evidence += ("spd_type",)
    evidence += tuple(
        key
        for key in ("pard2", "pard2_target_layers", "pard2_target_dim")
        if view.top.get(key) not in (None, False)
    )
    return ("pard2", evidence) if evidence else None


def _dspark(view: _View) -> _Found:
    """Markov or confidence head switched on, dspark_* keys that are set, or a label that no switched-off head denies."""
    evidence = _heads_on(view) + _dspark_keys(view.top, "") + _dspark_keys(view.text, "text_config.")
    if not evidence and _markov_head_off(view):
        return None
    evidence += _label_evidence(view, "dspark")
    return ("dspark", evidence) if evidence else None


def _heads_on(view: _View) -> tuple[str, ...]:
    """The fields that switch a Markov or confidence head on."""
    found: list[str] = []
    for section, prefix in _drafter_sections(view):
        found += [prefix + key for key in _HEAD_SIZES if _positive(section.get(key))]
        found += [prefix + key for key in _HEAD_SWITCHES if section.get(key) is True]
    return tuple(found)


def _markov_head_off(view: _View) -> tuple[str, ...]:
    """The fields that give the Markov head, without which DSpark is DFlash, a rank of zero."""
    return tuple(
        prefix + key
        for section, prefix in _drafter_sections(view)
        for key in _HEAD_SIZES
        if section.get(key) is not None and not _positive(section[key])
    )


def _drafter_sections(view: _View) -> tuple[tuple[Mapping[str, Any], str], ...]:
    return (
        (view.top, ""),
        (view.dflash, "dflash_config."),
        (_section(view.top, "dspark_config"), "dspark_config."),
    )


def _dspark_keys(section: Mapping[str, Any], prefix: str) -> tuple[str, ...]:
    # Exporters write dspark_* as null, 0 or false into files of other families; id 0 is an id.
    return tuple(
        f"{prefix}{key}"
        for key, value in section.items()
        if isinstance(key, str)
        and key.startswith("dspark_")
        and (value or (key == "dspark_noise_token_id" and value is not None and value is not False))
    )


def _dflash(view: _View) -> _Found:
    evidence = _label_evidence(view, "dflash")
    if view.dflash:
        evidence += ("dflash_config",)
    if not evidence and view.label == "dspark":
        # A DSpark class without its heads is DFlash's computation.
        evidence = _markov_head_off(view)
    return ("dflash", evidence) if evidence else None


def _peagle(view: _View) -> _Found:
    evidence = _label_evidence(view, "peagle")
    if view.top.get("parallel_drafting") is True:
        evidence += ("parallel_drafting",)
    if view.label in {"eagle", "eagle3"} and view.top.get("pard_token") is not None:
        evidence += ("architectures", "pard_token")
    if view.top.get("ptd_token_id") is not None:
        evidence += ("ptd_token_id",)
    return ("peagle", evidence) if evidence else None


def _pard(view: _View) -> _Found:
    evidence = _label_evidence(view, "pard")
    if view.top.get("spd_type") == "pard":
        evidence += ("spd_type",)
    if view.top.get("pard_token") is not None:
        evidence += ("pard_token",)
    return ("pard", evidence) if evidence else None


def _eagle(view: _View) -> _Found:
    evidence = _label_evidence(view, "eagle3")
    evidence += tuple(
        key
        for key in ("eagle_config", "eagle_aux_hidden_state_layer_ids")
        if view.top.get(key) not in (None, {}, [])
    )
    if evidence:
        return "eagle3", evidence
    evidence = _label_evidence(view, "eagle")
    return ("eagle", evidence) if evidence else None


def _medusa(view: _View) -> _Found:
    evidence = _label_evidence(view, "medusa")
    evidence += tuple(key for key in ("medusa_num_heads",) if view.top.get(key) is not None)
    return ("medusa", evidence) if evidence else None


def _by_model_type(view: _View) -> _Found:
    method = _MODEL_TYPE_METHODS.get(view.model_type)
    if method is not None:
        return method, ("model_type",)
    for label in ("mlp_speculator", "extract_hidden_states"):
        if view.label == label:
            return label, ("architectures",)
    return None


def _flat_layouts(view: _View) -> _Found:
    """Files without labels: DSpark's trainers write taps and id flat, speculators' DFlash around a layer config."""
    if view.top.get("mask_token_id") is None:
        return None
    if isinstance(view.top.get("target_layer_ids"), (list, tuple)):
        return "dspark", ("target_layer_ids", "mask_token_id")
    if _section(view.top, "transformer_layer_config") and view.top.get("aux_hidden_state_layer_ids"):
        return "dflash", ("transformer_layer_config", "aux_hidden_state_layer_ids", "mask_token_id")
    return None


def _mtp(view: _View) -> _Found:
    evidence = _label_evidence(view, "mtp")
    for section, prefix in ((view.top, ""), (view.text, "text_config.")):
        evidence += tuple(prefix + key for key in _MTP_COUNTS if _positive(section.get(key)))
        evidence += tuple(prefix + key for key in _MTP_SECTIONS if _section(section, key))
    if view.model_type in _SILENT_MTP_MODEL_TYPES or view.model_type.endswith("_mtp"):
        evidence += ("model_type",)
    return ("mtp", evidence) if evidence else None


def _draft_model(view: _View) -> _Found:
    if any(name.endswith(_PLAIN_MODEL_SUFFIXES) for name in view.architectures):
        return "draft_model", ("architectures",)
    return None


# From what only one family writes to what several write.
_RULES: Final[tuple[Callable[[_View], _Found], ...]] = (
    _by_speculators_type,
    _by_projector,
    _dflare,
    _domino,
    _pard2,
    _dspark,
    _dflash,
    _peagle,
    _pard,
    _eagle,
    _medusa,
    _by_model_type,
    _flat_layouts,
    _mtp,
    _draft_model,
)


def _label_evidence(view: _View, method: str) -> tuple[str, ...]:
    found: tuple[str, ...] = ()
    if view.label == method:
        found += ("architectures",)
    if view.model_type and _label(view.model_type) == method:
        found += ("model_type",)
    return found


def _contradictions(view: _View, method: str) -> tuple[str, ...]:
    """A label of another family; a base family's label on a variant of it (dflash on dflash2, ...) is none."""
    related = {
        ("dflash", "dflash2"),
        ("eagle3", "peagle"),
        ("eagle", "eagle3"),
        ("eagle", "peagle"),
        ("pard", "pard2"),
    }
    if view.label is None or view.label == method or (view.label, method) in related:
        return ()
    name = next((name for name in view.architectures if _label(name) == view.label), "")
    return (f"architectures: {name[:64]} ({view.label})",)


def _variant(view: _View, method: str) -> str | None:
    return "dflash2" if method == "dflash" and any("DFlash2" in name for name in view.architectures) else None
