"""Every place of a drafter's config that names a mask token id, whether an engine reads it or not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

ID_KEYS = ("mask_token_id", "dspark_noise_token_id", "pard_token", "ptd_token_id")
# Besides the top level, configs nest the drafter (or the language model it was copied from) in these.
SCOPES = ("text_config", "transformer_layer_config")
SECTIONS = ("dflash_config", "dspark_config", "dflare_config", "eagle_config", "speculators_config")


class Candidate(Struct, frozen=True):
    """One place that names an id.

    Attributes:
        source: dotted path in the raw file.
        value: what stands there, unconverted (``null`` and wrong types included).
        used: whether the engine's order stops here, be it for an answer or for an error.
    """

    source: str
    value: Any
    used: bool


def places(raw: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield ``(dotted path, value)`` of every place: the top level first, then the nested copies."""
    yield from _places_of_scope(raw, "")
    for name in SCOPES:
        scope = raw.get(name)
        if isinstance(scope, Mapping):
            yield from _places_of_scope(scope, name + ".")


def find_candidates(
    raw: Mapping[str, Any], *, reading_order: Sequence[str], used: str | None
) -> tuple[Candidate, ...]:
    """All candidates of a file: those that the engine would read, in its order, then the others.

    Args:
        raw: the parsed ``config.json``.
        reading_order: dotted raw paths in the order in which the engine reads them.
        used: dotted path of the place the order stops at, or ``None``.
    """
    found = [Candidate(path, value, path == used) for path, value in places(raw)]
    if len(found) > 1:
        rank = {path: number for number, path in enumerate(reading_order)}
        found.sort(key=lambda candidate: rank.get(candidate.source, len(rank)))
    return tuple(found)


def _places_of_scope(scope: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    yield from _ids_of(scope, prefix)
    for name in SECTIONS:
        section = scope.get(name)
        if isinstance(section, Mapping):
            yield from _ids_of(section, f"{prefix}{name}.")


def _ids_of(section: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key in ID_KEYS:
        if key in section:
            yield prefix + key, section[key]
