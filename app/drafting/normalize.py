"""From the raw ``config.json`` to the config that vLLM builds from it, with a way back to the raw place of every key.

Sources: vLLM 0.33 ``vllm/transformers_utils/configs/speculators/`` (speculators format) and its DeepSeek V4.1 config
class (``text_config`` flattened below the top level).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from msgspec import Struct

Translation: TypeAlias = Literal["speculators", "text_config"]

REGISTERED_SPECULATORS_TYPES = frozenset({"eagle3", "peagle", "dflash", "dflash2", "dspark"})
_FLATTENED_MODEL_TYPE = "deepseek_v41"
# Where the speculators format keeps the id.
_RAW_ID = "mask_token_id"
_LAYER_CONFIG = "transformer_layer_config"
# speculators' own classes write this model_type, which names no architecture.
_SPECULATORS_MODEL_TYPES = frozenset({"speculator_model", "speculators"})


class NormalizedConfig(Struct, frozen=True):
    """A config as the engine builds it.

    Attributes:
        config: the keys at the top level of the built config; values are shared with the raw file.
        translated_from: what was translated, ``None`` when the file is read as it stands.
        speculators_type: ``speculators_model_type`` when the file is in speculators format, registered or not.
        unregistered: the file is in speculators format, but of a type that vLLM refuses: read as it stands.
        config_section_missing: it counts as speculators format only for want of any other reading, as its
            ``speculators_config``, by which vLLM recognises the format, is missing or null.
        moved: built place -> raw place, for the keys that the translation moved or made.
        inherited: prefix of the raw place of the keys that are not in ``moved``.
        own_keys: keys that the raw top level itself holds, for ``text_config`` translations.
    """

    config: dict[str, Any]
    translated_from: Translation | None = None
    speculators_type: str | None = None
    unregistered: bool = False
    config_section_missing: bool = False
    moved: Mapping[str, str] = {}
    inherited: str = ""
    own_keys: frozenset[str] = frozenset()

    def raw_place(self, place: str) -> str:
        """Where in the raw file the built config's ``place`` (dotted) comes from."""
        moved = self.moved.get(place)
        if moved is not None:
            return moved
        if self.own_keys and place.split(".", 1)[0] in self.own_keys:
            return place
        return self.inherited + place


def normalize_drafter_config(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The top-level keys of the config that vLLM builds from a drafter's raw ``config.json``.

    Speculators-format files of the registered types are translated: the result starts from
    ``transformer_layer_config``; peagle's id becomes ``pard_token``, dflash's and dflash2's go into ``dflash_config``,
    dspark's stays ``mask_token_id``, and eagle3's is dropped. A missing id counts as ``null``. ``model_type:
    deepseek_v41`` has its ``text_config`` flattened; the top level wins. Everything else is copied as it stands. The
    input is never changed; nested values are shared with it.

    A file counts as speculators format when its ``speculators_config`` is not null (vLLM's own test), or when it has
    a ``speculators_model_type`` and no ``model_type`` that would let an engine read it in another way.
    """
    return normalize(raw).config


def normalize(raw: Mapping[str, Any]) -> NormalizedConfig:
    """As ``normalize_drafter_config``, telling where everything came from, too."""
    if is_speculators_format(raw):
        return _from_speculators(raw)
    if raw.get("model_type") == _FLATTENED_MODEL_TYPE and isinstance(raw.get("text_config"), Mapping):
        return NormalizedConfig(
            {**raw["text_config"], **raw},
            translated_from="text_config",
            inherited="text_config.",
            own_keys=frozenset(raw),
        )
    return NormalizedConfig(dict(raw))


def is_speculators_format(raw: Mapping[str, Any]) -> bool:
    """Whether the file is in the format of the speculators library (see ``normalize_drafter_config``)."""
    if raw.get("speculators_config") is not None:
        return True
    if not isinstance(raw.get("speculators_model_type"), str):
        return False
    model_type = raw.get("model_type")
    return not isinstance(model_type, str) or not model_type or model_type in _SPECULATORS_MODEL_TYPES


def _from_speculators(raw: Mapping[str, Any]) -> NormalizedConfig:
    named = raw.get("speculators_model_type")
    kind = named if isinstance(named, str) else None
    section_missing = raw.get("speculators_config") is None
    if kind is None or kind not in REGISTERED_SPECULATORS_TYPES:
        return NormalizedConfig(
            dict(raw), speculators_type=kind, unregistered=True, config_section_missing=section_missing
        )
    made, moved = _translate(kind, raw)
    layer_config = raw.get(_LAYER_CONFIG)
    base = layer_config if isinstance(layer_config, Mapping) else {}
    return NormalizedConfig(
        {**base, **made},
        translated_from="speculators",
        speculators_type=kind,
        config_section_missing=section_missing,
        moved=moved,
        inherited=_LAYER_CONFIG + ".",
    )


def _translate(kind: str, raw: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The keys that the translation writes over the layer config, and where each comes from."""
    made: dict[str, Any] = {}
    moved: dict[str, str] = {}
    for key in ("draft_vocab_size", "target_hidden_size"):
        if key in raw:
            made[key], moved[key] = raw[key], key
    token_id = raw.get(_RAW_ID)
    if kind == "peagle":
        made["pard_token"], moved["pard_token"] = token_id, _RAW_ID
    elif kind == "dspark":
        made["mask_token_id"], moved["mask_token_id"] = token_id, _RAW_ID
    elif kind in {"dflash", "dflash2"}:
        made["dflash_config"] = {"mask_token_id": token_id}
        moved["dflash_config.mask_token_id"] = _RAW_ID
    _translate_layer_ids(kind, raw, made, moved)
    return made, moved


def _translate_layer_ids(
    kind: str, raw: Mapping[str, Any], made: dict[str, Any], moved: dict[str, str]
) -> None:
    """Tap ids: capture points as they stand, and z-lab's numbering (one less) beside them."""
    name = (
        "eagle_aux_hidden_state_layer_ids" if kind in {"eagle3", "peagle"} else "aux_hidden_state_layer_ids"
    )
    ids = raw.get(name)
    if not isinstance(ids, (list, tuple)) or not ids:
        return
    made["eagle_aux_hidden_state_layer_ids"] = ids
    moved["eagle_aux_hidden_state_layer_ids"] = name
    if kind in {"dflash", "dflash2"} and all(type(layer) is int for layer in ids):
        made["dflash_config"]["target_layer_ids"] = [layer - 1 for layer in ids]
        moved["dflash_config.target_layer_ids"] = name
