"""The whole answer about a drafter's mask token id: what the engine reads, from where, and what to know about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from .candidates import Candidate, find_candidates
from .engines import EngineRef, engine_or_newest
from .findings import Finding
from .mask_token import (
    READING_ORDER,
    MaskTokenError,
    MaskTokenInvalidError,
    MaskTokenMissingError,
    Resolution,
    resolve,
)
from .mask_token_findings import (
    candidate_findings,
    duplicate_findings,
    engine_findings,
    format_findings,
    id_findings,
    method_findings,
    need_findings,
    null_findings,
    value_findings,
)
from .methods import detect_method, engine_method
from .normalize import NormalizedConfig, Translation, normalize

# Tokenizers take 32-bit ids.
_LARGEST_TOKEN_ID: Final = 2**31 - 1


class MaskTokenAnswer(Struct, frozen=True):
    """What the engine reads.

    Attributes:
        mask_token_id: the id, as ``int()`` gives it: it may be negative or larger than 64 bits.
        source: dotted path in the *raw* file.
        translated_from: what the engine translates before it reads; ``None`` when it reads the file as it stands.
        method: the drafter's family.
        engine_method: what the engine wants to be told for it; ``None`` where it refuses or nothing is known.
        engine: for which engine.
        token: the token's text, where the caller has a tokenizer.
        candidates: every place that names an id.
        findings: what else to know.
    """

    mask_token_id: int
    source: str
    translated_from: Translation | None
    method: str | None
    engine_method: str | None
    engine: EngineRef
    token: str | None
    candidates: tuple[Candidate, ...]
    findings: tuple[Finding, ...]


def answer_mask_token(
    config: Mapping[str, Any],
    *,
    target: Mapping[str, Any] | None = None,
    engine: EngineRef | None = None,
    token_text: Callable[[int], str | None] | None = None,
    duplicate_keys: Sequence[str] = (),
) -> MaskTokenAnswer:
    """Answer from a drafter's raw ``config.json``.

    The id is the one that the newest known vLLM reads; where ``engine`` reads another one, a finding says so.

    Args:
        config: the parsed file; any key may hold any JSON value.
        target: the target's parsed ``config.json``, to check the id against its vocabulary and special tokens.
        engine: the newest known vLLM when ``None``.
        token_text: text of a token, for ids that fit a tokenizer.
        duplicate_keys: keys that the file names more than once.

    Raises:
        MaskTokenMissingError: no place that the engine reads names an id; ``candidates`` and ``findings`` are filled.
        MaskTokenInvalidError: the place that decides holds no integer; likewise.
    """
    engine = engine_or_newest(engine)
    normalized = normalize(config)
    detection = detect_method(config)
    common = [
        *format_findings(normalized, engine),
        *method_findings(detection),
        *duplicate_findings(duplicate_keys),
    ]
    try:
        resolution = resolve(normalized.config)
    except MaskTokenError as error:
        failure = _in_raw_terms(error, normalized, config)
        used = failure.key if isinstance(failure, MaskTokenInvalidError) else None
        failure.candidates = _candidates(config, normalized, used)
        failure.method = detection.method
        failure.findings = (
            *common,
            *need_findings(detection.method),
            *null_findings(failure.candidates, normalized),
            *engine_findings(config, normalized.config, detection.method, None, engine),
        )
        raise failure from None
    source = normalized.raw_place(resolution.place)
    candidates = _candidates(config, normalized, source)
    return MaskTokenAnswer(
        mask_token_id=resolution.token_id,
        source=source,
        translated_from=normalized.translated_from,
        method=detection.method,
        engine_method=engine_method(detection.method, engine),
        engine=engine,
        token=_token(resolution.token_id, token_text),
        candidates=candidates,
        findings=(
            *_resolution_findings(resolution, source, candidates, config, target),
            *null_findings(candidates, normalized),
            *common,
            *engine_findings(config, normalized.config, detection.method, resolution.token_id, engine),
        ),
    )


def _resolution_findings(
    resolution: Resolution,
    source: str,
    candidates: Sequence[Candidate],
    config: Mapping[str, Any],
    target: Mapping[str, Any] | None,
) -> tuple[Finding, ...]:
    return (
        *id_findings(resolution.token_id, source, config, target),
        *value_findings(resolution.value, resolution.token_id, source),
        *candidate_findings(candidates, resolution.token_id),
    )


def _candidates(
    config: Mapping[str, Any], normalized: NormalizedConfig, used: str | None
) -> tuple[Candidate, ...]:
    order = [normalized.raw_place(place) for place in READING_ORDER]
    return find_candidates(config, reading_order=order, used=used)


def _in_raw_terms(
    error: MaskTokenError, normalized: NormalizedConfig, config: Mapping[str, Any]
) -> MaskTokenError:
    """The same error, naming the place in the raw file that the engine's key comes from."""
    if not isinstance(error, MaskTokenInvalidError):
        return MaskTokenMissingError()
    place = normalized.raw_place(error.key)
    found = error.json_type
    if normalized.translated_from == "speculators" and place == "mask_token_id" and place not in config:
        found = "missing (null to vLLM's translation)"
    return MaskTokenInvalidError(place, found, section=error.section)


def _token(token_id: int, token_text: Callable[[int], str | None] | None) -> str | None:
    if token_text is None or not 0 <= token_id <= _LARGEST_TOKEN_ID:
        return None
    return token_text(token_id)
