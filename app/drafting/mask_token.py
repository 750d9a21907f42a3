"""Which token id stands for "not drafted yet" in parallel drafting: vLLM's reading order, exactly.

Source: vLLM 0.32 and 0.33, ``vllm/v1/worker/gpu/spec_decode/utils.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, NamedTuple

from .candidates import Candidate
from .findings import Finding
from .json_values import json_type

# The places, in reading order; the first is a key of a section, the others stand at the top level.
READING_ORDER: Final = (
    "dflash_config.mask_token_id",
    "mask_token_id",
    "dspark_noise_token_id",
    "pard_token",
    "ptd_token_id",
)

_ABSENT: Final = object()
# What int(), bool(), `in` and [] raise on values that a config can hold, and on objects that misbehave mildly.
_REJECTIONS: Final = (TypeError, ValueError, ArithmeticError, LookupError, AttributeError)


class MaskTokenError(ValueError):
    """vLLM finds no usable mask token id in the config.

    Attributes:
        code: stable code of the problem.
        detail: what is wrong and what to do.
        candidates: every place that names an id (filled by ``answer_mask_token``).
        method: the drafter's family, where it is known (filled by ``answer_mask_token``).
        findings: what else was noticed (filled by ``answer_mask_token``).
    """

    code: ClassVar[str] = "mask_token_error"

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail
        self.candidates: tuple[Candidate, ...] = ()
        self.method: str | None = None
        self.findings: tuple[Finding, ...] = ()


class MaskTokenMissingError(MaskTokenError):
    """None of the five places names an id."""

    code: ClassVar[str] = "mask_token_missing"

    def __init__(self) -> None:
        super().__init__(
            f"The config names no mask token id: none of {', '.join(READING_ORDER)} is there. "
            "Set the id that the drafter was trained with; it can't be derived from pad, eos or a tokenizer."
        )


class MaskTokenInvalidError(MaskTokenError):
    """The place that decides holds something that is no integer.

    Attributes:
        key: dotted path of the place.
        json_type: type of what stands there, e.g. ``null`` or ``an array``.
        section: the place is a section that should hold the id, not the id itself.
    """

    code: ClassVar[str] = "mask_token_invalid"

    def __init__(self, key: str, found: str, *, section: bool = False) -> None:
        wanted = "an object with mask_token_id in it" if section else "an integer"
        super().__init__(
            f"{key} is {found} where {wanted} is needed, and vLLM reads no further once it is there. "
            f"Set it to {wanted}{' (or leave it out)' if section else ', the id that the drafter was trained with'}."
        )
        self.key = key
        self.json_type = found
        self.section = section


class Resolution(NamedTuple):
    """What the order stops at: the id, the place in the config as built, and the value before ``int()``."""

    token_id: int
    place: str
    value: Any


def get_parallel_drafting_token_id(hf_config: object) -> int:
    """The mask token id that vLLM reads from a drafter's config.

    First hit wins: ``dflash_config.mask_token_id`` (the presence of the key decides), ``mask_token_id`` (``null`` is
    skipped), ``dspark_noise_token_id``, ``pard_token``, ``ptd_token_id`` (presence decides). The value goes through
    ``int()``, so ``"151669"``, ``151669.0`` and ``true`` are ids, too. There is no check of sign or vocabulary.

    Args:
        hf_config: a transformers config (attributes) or a parsed ``config.json`` (mapping), as the engine has *built*
            it: see ``normalize_drafter_config``.

    Raises:
        MaskTokenMissingError: none of the five is there.
        MaskTokenInvalidError: the one that decides holds something ``int()`` rejects, or ``dflash_config`` is
            something that can't be asked for a key.
    """
    return resolve(hf_config).token_id


def resolve(hf_config: object) -> Resolution:
    """As ``get_parallel_drafting_token_id``, telling the place and the raw value, too."""
    in_section = _section_value(_read(hf_config, "dflash_config"))
    if in_section is not _ABSENT:
        return _as_id(in_section, READING_ORDER[0])
    top_level = _read(hf_config, "mask_token_id")
    if top_level is not _ABSENT and top_level is not None:
        return _as_id(top_level, "mask_token_id")
    for place in READING_ORDER[2:]:
        value = _read(hf_config, place)
        if value is not _ABSENT:
            return _as_id(value, place)
    raise MaskTokenMissingError


def _read(hf_config: object, name: str) -> Any:
    if isinstance(hf_config, Mapping):
        return hf_config.get(name, _ABSENT)
    return getattr(hf_config, name, _ABSENT)


def _section_value(section: Any) -> Any:
    """``dflash_config``'s id, or ``_ABSENT`` when the section is falsy or lacks the key.

    A list or a string can be asked for the key, and falls through when it lacks it, as in vLLM.
    """
    if section is _ABSENT:
        return _ABSENT
    try:
        if not section or "mask_token_id" not in section:
            return _ABSENT
        return section["mask_token_id"]
    except _REJECTIONS:
        raise MaskTokenInvalidError("dflash_config", json_type(section), section=True) from None


def _as_id(value: Any, place: str) -> Resolution:
    try:
        return Resolution(int(value), place, value)
    except _REJECTIONS:
        raise MaskTokenInvalidError(place, _describe(value)) from None


def _describe(value: Any) -> str:
    # NaN and Infinity are numbers, long digit strings are strings: say what is special about them.
    if isinstance(value, float):
        return f"{value} (a number)"
    return f"{json_type(value)} that is no integer" if isinstance(value, str) else json_type(value)
