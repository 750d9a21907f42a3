"""The few numbers of a ``config.json`` that the plan calculates with, read from whatever JSON the file holds.

Every reader here answers ``None`` where the file says nothing usable: a hostile config makes a plan with gaps, never
an exception.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

_LARGEST_COUNT = 2**31 - 1
_LARGEST_NUMBER = 2**63 - 1
# Where multimodal configs keep the language model that drafts are made for.
_TEXT_SECTIONS = ("text_config", "language_config", "llm_config")
_DTYPE_BYTES = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}
_DTYPE_ALIASES = {
    "half": "float16",
    "fp16": "float16",
    "bf16": "bfloat16",
    "float": "float32",
    "fp32": "float32",
}


class ModelShape(Struct, frozen=True):
    """What a config says of one model's language part; ``None`` where it says nothing usable.

    Attributes:
        hidden_size: width of the residual stream.
        num_layers: decoder layers.
        vocab_size: rows of the embedding.
        streams: parallel residual streams (``hc_mult`` of DeepSeek V4, ``hc_count`` of Qwen4-exp).
        dtype: ``bfloat16`` and the like, without ``torch.``.
        model_types: the outer and the inner ``model_type``, as written.
        architectures: class names, as written.
    """

    hidden_size: int | None
    num_layers: int | None
    vocab_size: int | None
    streams: int | None
    dtype: str | None
    model_types: tuple[str, ...]
    architectures: tuple[str, ...]


def as_mapping(value: object) -> Mapping[str, Any]:
    """The value if it is a JSON object, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def as_count(value: object) -> int | None:
    """A positive integer of at most 31 bits, else ``None`` (``true`` is no number here)."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _LARGEST_COUNT:
        return value
    return None


def as_int(value: object) -> int | None:
    """An integer of at most 31 bits of either sign, else ``None``."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _LARGEST_COUNT:
        return value
    return None


def as_int_list(value: object) -> tuple[int, ...] | None:
    """A non-empty list of integers, else ``None``."""
    if not isinstance(value, (list, tuple)) or not value:
        return None
    numbers = tuple(number for item in value if (number := as_int(item)) is not None)
    return numbers if len(numbers) == len(value) else None


def as_text(value: object) -> str | None:
    """A non-empty string, else ``None``."""
    return value if isinstance(value, str) and value else None


def text_list(value: object) -> tuple[str, ...]:
    """The strings of a list; a lone string counts as a list of one."""
    if isinstance(value, str):
        return (value,)
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, (list, tuple)) else ()


def product(*factors: int | None) -> int | None:
    """The product, or ``None`` when a factor is missing or the result would not fit into 63 bits."""
    result = 1
    for factor in factors:
        if factor is None:
            return None
        result *= factor
    return result if abs(result) <= _LARGEST_NUMBER else None


def language_section(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a config that describes the language model: a nested section where there is one."""
    outer = as_mapping(config.get("thinker_config")) or config
    for name in _TEXT_SECTIONS:
        section = outer.get(name)
        if isinstance(section, Mapping) and section:
            return section
    return outer


def lookup(config: Mapping[str, Any], *names: str) -> Any:
    """The first of ``names`` that is there and not null: the language section is asked first, then the top level."""
    section = language_section(config)
    for place in (section, config) if section is not config else (config,):
        for name in names:
            value = place.get(name)
            if value is not None:
                return value
    return None


def normalise_dtype(value: object) -> str | None:
    """``torch.bfloat16``, ``bf16`` and ``bfloat16`` are one dtype; ``auto`` is none."""
    text = as_text(value)
    if text is None:
        return None
    name = text.removeprefix("torch.").lower()
    name = _DTYPE_ALIASES.get(name, name)
    return None if name == "auto" else name


def dtype_bytes(dtype: str | None) -> int | None:
    """Bytes of one element, ``None`` for a dtype that is unknown here."""
    return _DTYPE_BYTES.get(dtype) if dtype is not None else None


def read_shape(config: Mapping[str, Any]) -> ModelShape:
    """Reads a target's or a drafter's config; nested language sections win over the top level."""
    section = language_section(config)
    types = tuple(
        text for place in (config, section) if (text := as_text(place.get("model_type"))) is not None
    )
    return ModelShape(
        hidden_size=as_count(lookup(config, "hidden_size", "n_embd", "d_model")),
        num_layers=as_count(lookup(config, "num_hidden_layers", "n_layer", "num_layers")),
        vocab_size=as_count(lookup(config, "vocab_size", "padded_vocab_size")),
        streams=as_count(lookup(config, "hc_mult", "hc_count")),
        dtype=normalise_dtype(lookup(config, "dtype", "torch_dtype")),
        model_types=tuple(dict.fromkeys(types)),
        architectures=text_list(config.get("architectures")) or text_list(section.get("architectures")),
    )
