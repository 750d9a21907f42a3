"""Which mask token id SGLang reads from the same file, for drafters that both engines run.

Sources: SGLang 0.5.23 ``speculative/dflash_utils.py`` and ``speculative/dspark_components/dspark_config.py``. Where
SGLang finds no id it asks the tokenizer for a mask token; a config can't tell what that gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct

Algorithm: TypeAlias = Literal["DFLASH", "DSPARK"]

ALGORITHMS: Final[Mapping[str, Algorithm]] = {"dflash": "DFLASH", "dflash2": "DFLASH", "dspark": "DSPARK"}
SOURCE: Final = "SGLang 0.5.23: speculative/dflash_utils.py, speculative/dspark_components/dspark_config.py"


class SglangReading(Struct, frozen=True):
    """What SGLang makes of a file.

    Attributes:
        outcome: ``id`` (from the config), ``tokenizer`` (no id in the config) or ``error`` (it refuses the value).
        token_id: the id, for ``id``.
    """

    outcome: Literal["id", "tokenizer", "error"]
    token_id: int | None = None


def read_as_sglang(raw: Mapping[str, Any], algorithm: Algorithm) -> SglangReading:
    """The id that SGLang reads from a raw ``config.json`` before it looks into the tokenizer."""
    dflash = _read_dflash(raw)
    if algorithm == "DFLASH" or dflash.outcome == "error":
        return dflash
    value = raw.get("dspark_noise_token_id")
    if value is None:
        value = _dspark_section_value(raw, dflash.token_id)
    if value is None:
        return SglangReading("tokenizer")
    try:
        return _checked(int(value))
    except (TypeError, ValueError, OverflowError):
        return SglangReading("error")


def _read_dflash(raw: Mapping[str, Any]) -> SglangReading:
    section = raw.get("dflash_config")
    inner = section if isinstance(section, Mapping) else {}
    value = inner["mask_token_id"] if "mask_token_id" in inner else raw.get("mask_token_id")
    if value is None:
        return SglangReading("tokenizer")
    if isinstance(value, bool) or not isinstance(value, int):
        return SglangReading("error")
    return _checked(value)


def _dspark_section_value(raw: Mapping[str, Any], fallback: int | None) -> Any:
    """``dspark_config`` over ``dflash_config``, then ``text_config``, then the top level."""
    text = raw.get("text_config")
    scopes: list[Any] = [raw.get("dspark_config"), raw.get("dflash_config")]
    scopes += [text, raw] if isinstance(text, Mapping) else [raw]
    for scope in scopes:
        if isinstance(scope, Mapping) and "mask_token_id" in scope:
            return scope["mask_token_id"]
    return fallback


def _checked(token_id: int) -> SglangReading:
    return SglangReading("id", token_id) if token_id >= 0 else SglangReading("error")
