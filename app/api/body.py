"""Reading request bodies: bounded while they arrive, parsed once, validated strictly."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from ..sources.json_text import ParsedBody, parse_json_body
from .problem import FieldProblem, ProblemError, invalid

_Model = TypeVar("_Model", bound=BaseModel)
MAX_DEPTH = 72  # a config of 64 levels, and what a request wraps around it
_JSON_TYPES = ("application/json", "text/json")


class JsonBody:
    """A parsed body.

    Attributes:
        value: the JSON object or array.
        duplicate_keys: dotted paths of keys that it repeats.
    """

    def __init__(self, value: Any, duplicate_keys: tuple[str, ...]) -> None:
        self.value = value
        self.duplicate_keys = duplicate_keys

    def duplicates_below(self, field: str) -> tuple[str, ...]:
        """Repeated keys inside a config, as paths from that config on."""
        prefix = f"{field}."
        return tuple(path.removeprefix(prefix) for path in self.duplicate_keys if path.startswith(prefix))


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The body's bytes.

    Raises:
        ProblemError: ``request_too_large`` as soon as that is known, ``unsupported_media_type`` for a body that a browser
            may send across sites without asking.
    """
    media_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if media_type not in _JSON_TYPES and not media_type.endswith("+json"):
        raise ProblemError("unsupported_media_type", "Send the body as application/json.")
    too_large = ProblemError(
        "request_too_large",
        f"Send at most {max_bytes} bytes, or raise DRAFTPORT_MAX_BODY_BYTES.",
        headers={"connection": "close"},
    )
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced[:20]) > max_bytes:
        raise too_large
    chunks: list[bytes] = []
    size = 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > max_bytes:
                raise too_large
            chunks.append(chunk)
    except ClientDisconnect:
        raise ProblemError("malformed_json", "The client went away before the body was complete.") from None
    return b"".join(chunks)


async def read_json(request: Request, max_bytes: int, *, config_fields: tuple[str, ...] = ()) -> JsonBody:
    """The body as a JSON object.

    Args:
        request: the request.
        max_bytes: bound on the body.
        config_fields: dotted paths of fields that hold a model's config, where ``NaN``, ``Infinity`` and repeated
            keys occur in real files and are taken as they are.

    Raises:
        ProblemError: ``malformed_json``, ``invalid_request``, ``request_too_large``.
    """
    parsed = parse_json_body(await read_body(request, max_bytes), max_depth=MAX_DEPTH)
    if not isinstance(parsed.value, dict):
        raise ProblemError("invalid_request", "The body must be a JSON object.")
    _refuse_outside(parsed, tuple(f"{field}." for field in config_fields))
    return JsonBody(parsed.value, parsed.duplicate_keys)


async def read_json_list(
    request: Request, max_bytes: int, max_items: int, *, config_fields: tuple[str, ...] = ()
) -> JsonBody:
    """The body as a JSON array of at most ``max_items``; ``config_fields`` are paths within an item.

    Raises:
        ProblemError: as ``read_json``.
    """
    parsed = parse_json_body(await read_body(request, max_bytes), max_depth=MAX_DEPTH + 1)
    if not isinstance(parsed.value, list):
        raise ProblemError("invalid_request", "The body must be a JSON array of requests.")
    if not 1 <= len(parsed.value) <= max_items:
        raise ProblemError("invalid_request", f"Send 1 to {max_items} requests at a time.")
    indices = range(len(parsed.value))
    _refuse_outside(parsed, tuple(f"{index}.{field}." for index in indices for field in config_fields))
    return JsonBody(parsed.value, parsed.duplicate_keys)


def _refuse_outside(parsed: ParsedBody, prefixes: tuple[str, ...]) -> None:
    for path in parsed.nonfinite_paths:
        if not path.startswith(prefixes):
            raise invalid(path, "NaN and Infinity are allowed inside configs only.", "not_finite")
    for path in parsed.duplicate_keys:
        if not path.startswith(prefixes):
            raise invalid(path, "The field is given twice; give it once.", "duplicate")


def validated(model: type[_Model], value: Any) -> _Model:
    """``value`` as a model.

    Raises:
        ProblemError: ``invalid_request`` with one entry per field; values are not repeated.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise invalid_fields(error.errors(include_url=False, include_input=False)) from None


def invalid_fields(errors: Any) -> ProblemError:
    """``invalid_request`` from pydantic's list of errors."""
    problems = []
    for error in list(errors)[:32]:
        place = [part for part in error["loc"] if part not in ("body", "query", "path", "header")]
        field = ".".join(str(part)[:100] for part in place)
        code = {"extra_forbidden": "unknown_field"}.get(error["type"], error["type"])
        detail = "There is no such field." if code == "unknown_field" else _sentence(error["msg"])
        problems.append(FieldProblem(field, code, detail))
    first = problems[0]
    where = f"{first.field}: " if first.field else ""
    return ProblemError("invalid_request", f"{where}{first.detail}", errors=problems)


def _sentence(message: str) -> str:
    text = message.removeprefix("Value error, ")
    return f"{text[:1].upper()}{text[1:]}."
