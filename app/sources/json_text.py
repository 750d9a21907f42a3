"""JSON from strangers: bounded, strict where it matters, and honest about what is odd in it.

Python's own decoder is used, since configs of hybrid models hold ``NaN`` and ``Infinity``, which stricter ones refuse.
The usual document costs one C-speed pass; the tree is walked only when something in the text calls for it.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

from ..drafting.findings import Finding
from ..drafting.mask_token_findings import duplicate_findings
from .errors import SourceError

# A number longer than this is no setting of any model; int() of a long text is quadratic.
MAX_NUMBER_CHARACTERS: Final = 128
# Commas and brackets bound the number of objects that Python builds, about 64 bytes each.
MAX_ELEMENTS: Final = 1_000_000
MAX_REPORTED_PATHS: Final = 64
MAX_PATH_CHARACTERS: Final = 200
# More objects than paths, since those that a later duplicate replaces are not reported.
MAX_REMEMBERED_OBJECTS: Final = 256
_SURROGATE_ESCAPE: Final = re.compile(rb"\\u[dD][89a-fA-F]")


class ParsedConfig(Struct, frozen=True):
    """A parsed config.json.

    Attributes:
        config: the object; of duplicate keys the last wins.
        sha256: hex SHA-256 of the bytes as given.
        duplicate_keys: dotted paths of repeated keys, at most 64 of them.
        byte_size: length of the text in bytes.
    """

    config: dict[str, Any]
    sha256: str
    duplicate_keys: tuple[str, ...] = ()
    byte_size: int = 0


class ParsedBody(Struct, frozen=True):
    """A parsed request body.

    Attributes:
        value: whatever JSON it was.
        duplicate_keys: dotted paths of repeated keys, at most 64 of them.
        nonfinite_paths: dotted paths of ``NaN``, ``Infinity``, ``-Infinity`` and numbers too large for a float, at
            most 64 of them; REST refuses them outside configs.
    """

    value: Any
    duplicate_keys: tuple[str, ...] = ()
    nonfinite_paths: tuple[str, ...] = ()


class _RefusedError(Exception):
    """Why a text is refused, as the end of a sentence that begins with the document's name."""


def parse_config(text: bytes, *, max_depth: int = 64, max_bytes: int = 8 << 20) -> ParsedConfig:
    """Parse a config.json.

    Args:
        text: the file's bytes, UTF-8 without a byte order mark.
        max_depth: levels of objects and arrays allowed; the top level is the first.
        max_bytes: bound on ``len(text)``.

    Raises:
        SourceError: ``config_invalid``, when it is no JSON object within the limits.
    """
    if len(text) > max_bytes:
        raise SourceError("config_invalid", f"The config is larger than the {max_bytes} bytes allowed.")
    try:
        value, duplicates, _ = _parse(text, max_depth)
    except _RefusedError as refusal:
        raise SourceError("config_invalid", f"The config {refusal}.") from None
    if not isinstance(value, dict):
        raise SourceError("config_invalid", "The config is JSON, but not a JSON object.")
    return ParsedConfig(value, hashlib.sha256(text).hexdigest(), duplicates, len(text))


def parse_json_body(data: bytes, *, max_depth: int = 64) -> ParsedBody:
    """Parse a request body, whose size the caller has bounded.

    Raises:
        SourceError: ``malformed_json``, when it is no JSON text within the limits.
    """
    try:
        value, duplicates, nonfinite = _parse(data, max_depth)
    except _RefusedError as refusal:
        raise SourceError("malformed_json", f"The request body {refusal}.") from None
    return ParsedBody(value=value, duplicate_keys=duplicates, nonfinite_paths=nonfinite)


def config_sha256_of(config: Mapping[str, Any]) -> str:
    """Hex SHA-256 of a config that came inline, where no file's bytes exist.

    It is that of the canonical JSON: keys sorted by code point, no white space, UTF-8 without escapes that JSON does
    not ask for. It differs from the hash of a file with the same content.
    """
    text = json.dumps(config, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def duplicate_key_findings(paths: tuple[str, ...]) -> tuple[Finding, ...]:
    """The finding for repeated keys, or nothing. ``LoadedModel.findings`` has it already; inline configs need it."""
    return tuple(duplicate_findings(paths))


def _parse(text: bytes, max_depth: int) -> tuple[Any, tuple[str, ...], tuple[str, ...]]:
    elements = text.count(b",") + text.count(b"[") + text.count(b"{")
    if elements > MAX_ELEMENTS:
        raise _RefusedError(f"has more than {MAX_ELEMENTS} elements")
    try:
        decoded = text.decode("utf-8")
    except UnicodeDecodeError:
        raise _RefusedError("is not UTF-8") from None
    if decoded.startswith("\ufeff"):
        raise _RefusedError("starts with a byte order mark; save it as plain UTF-8")
    notes = _Notes()
    value = _decode(decoded, notes, max_depth)
    may_be_deep = text.count(b"[") + text.count(b"{") > max_depth
    may_have_surrogates = b"\\u" in text and _SURROGATE_ESCAPE.search(text) is not None
    if not (notes.nonfinite or notes.repeated or may_be_deep or may_have_surrogates):
        return value, (), ()
    return value, *_inspect(value, notes, max_depth, check_text=may_have_surrogates)


def _decode(text: str, notes: _Notes, max_depth: int) -> Any:
    try:
        return json.loads(
            text,
            object_pairs_hook=notes.object,
            parse_int=notes.integer,
            parse_float=notes.number,
            parse_constant=notes.constant,
        )
    except RecursionError:
        raise _RefusedError(f"is nested more than {max_depth} levels deep") from None
    except json.JSONDecodeError as error:
        raise _RefusedError(f"is not JSON (line {error.lineno}, column {error.colno})") from None


class _Notes:
    """What the decoder's hooks see on the way."""

    def __init__(self) -> None:
        self.nonfinite = False
        # Keyed by identity; the object is kept too, so that its identity stays its own.
        self.repeated: dict[int, tuple[dict[str, Any], tuple[str, ...]]] = {}

    def object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs) and len(self.repeated) < MAX_REMEMBERED_OBJECTS:
            seen: set[str] = set()
            again: dict[str, None] = {}
            for key, _ in pairs:
                if key in seen:
                    again[key] = None
                seen.add(key)
            self.repeated[id(result)] = (result, tuple(again)[:MAX_REPORTED_PATHS])
        return result

    def integer(self, digits: str) -> int:
        if len(digits) > MAX_NUMBER_CHARACTERS:
            raise _RefusedError(f"has a number of more than {MAX_NUMBER_CHARACTERS} characters")
        return int(digits)

    def number(self, digits: str) -> float:
        if len(digits) > MAX_NUMBER_CHARACTERS:
            raise _RefusedError(f"has a number of more than {MAX_NUMBER_CHARACTERS} characters")
        value = float(digits)
        if math.isinf(value):
            self.nonfinite = True
        return value

    def constant(self, name: str) -> float:
        self.nonfinite = True
        return float(name)


class _Place:
    """A container on the way down, linked to the one that holds it; its path is only spelled out when needed."""

    __slots__ = ("depth", "key", "parent", "value")

    def __init__(self, value: Any, key: str, parent: _Place | None) -> None:
        self.value = value
        self.key = key
        self.parent = parent
        self.depth: int = 1 if parent is None else parent.depth + 1

    def path(self, key: str) -> str:
        """The dotted path of one of this container's items; the outermost holder has no part in it."""
        keys: list[str] = []
        place: _Place | None = self
        while place is not None and place.parent is not None:
            keys.append(key[:MAX_PATH_CHARACTERS])
            key, place = place.key, place.parent
        return ".".join(reversed(keys))[:MAX_PATH_CHARACTERS]


def _inspect(
    value: Any, notes: _Notes, max_depth: int, *, check_text: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Walk the tree once, without recursion: depth, lone surrogates, and the paths of what is odd."""
    duplicates: list[str] = []
    nonfinite: list[str] = []
    # A holder around the value makes a bare string or number no special case.
    places = [_Place([value], "", None)]
    while places:
        place = places.pop()
        if place.depth > max_depth + 1:
            raise _RefusedError(f"is nested more than {max_depth} levels deep")
        repeated = notes.repeated.get(id(place.value))
        if repeated is not None and len(duplicates) < MAX_REPORTED_PATHS:
            duplicates += [place.path(key) for key in repeated[1]]
        for key, item in _items(place.value):
            if isinstance(item, dict | list):
                places.append(_Place(item, str(key), place))
            elif isinstance(item, float) and not math.isfinite(item) and len(nonfinite) < MAX_REPORTED_PATHS:
                nonfinite.append(place.path(str(key)))
            if check_text:
                _refuse_lone_surrogates(key, item)
    return tuple(sorted(duplicates)[:MAX_REPORTED_PATHS]), tuple(sorted(nonfinite))


def _items(container: dict[str, Any] | list[Any]) -> Iterator[tuple[str | int, Any]]:
    return iter(container.items()) if isinstance(container, dict) else enumerate(container)


def _refuse_lone_surrogates(*texts: Any) -> None:
    try:
        for text in texts:
            if isinstance(text, str):
                text.encode()
    except UnicodeEncodeError:
        raise _RefusedError("has half of a surrogate pair, which is no character") from None
