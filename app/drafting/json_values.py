"""How to speak about a JSON value in a sentence without echoing all of it."""

from __future__ import annotations

from collections.abc import Mapping

# A boolean is an int, too, so it is asked for first.
_TYPE_NAMES: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (type(None), "null"),
    (bool, "a boolean"),
    (int, "an integer"),
    (float, "a number"),
    (str, "a string"),
    (Mapping, "an object"),
    ((list, tuple), "an array"),
)
_LONGEST_TEXT = 40
_LARGEST_BITS = 128


def json_type(value: object) -> str:
    """JSON's name for the type of a parsed value, with an article: ``a string``, ``null``, ``an object`` ..."""
    return next((name for kind, name in _TYPE_NAMES if isinstance(value, kind)), "no JSON value")


def show(value: object) -> str:
    """A short text for a scalar; for everything else its type (a config may hold megabytes)."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        # str() refuses integers of more than 4300 digits.
        return (
            str(value) if value.bit_length() <= _LARGEST_BITS else f"an integer of {value.bit_length()} bits"
        )
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, str):
        return repr(value if len(value) <= _LONGEST_TEXT else value[:_LONGEST_TEXT] + "...")
    return json_type(value)
