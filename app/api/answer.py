"""Encoding answers: msgspec, strong entity tags, conditional requests."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

_encode = msgspec.json.Encoder().encode
_JSON = "application/json"


class Answer:
    """An encoded body and its strong entity tag."""

    __slots__ = ("body", "etag")

    def __init__(self, document: Any) -> None:
        self.body: bytes = _encode(document)
        self.etag = f'"{hashlib.blake2b(self.body, digest_size=16).hexdigest()}"'


class AnswerCache:
    """Encoded answers by everything they depend on; least recently used ones go first."""

    def __init__(self, entries: int = 1024, max_bytes: int = 16 << 20) -> None:
        self._entries = entries
        self._max_bytes = max_bytes
        self._bytes = 0
        self._answers: OrderedDict[tuple[Any, ...], Answer] = OrderedDict()

    def get(self, key: tuple[Any, ...]) -> Answer | None:
        """A kept answer."""
        answer = self._answers.get(key)
        if answer is not None:
            self._answers.move_to_end(key)
        return answer

    def put(self, key: tuple[Any, ...], answer: Answer) -> Answer:
        """Keeps an answer and returns it."""
        old = self._answers.pop(key, None)
        self._bytes += len(answer.body) - (len(old.body) if old else 0)
        self._answers[key] = answer
        while self._answers and (len(self._answers) > self._entries or self._bytes > self._max_bytes):
            _, gone = self._answers.popitem(last=False)
            self._bytes -= len(gone.body)
        return answer

    def get_or_make(self, key: tuple[Any, ...], make: Callable[[], Any]) -> Answer:
        """A kept answer, else one made from the document that ``make`` returns; its exceptions pass through."""
        return self.get(key) or self.put(key, Answer(make()))


def json_response(document: Any, status_code: int = 200) -> Response:
    """A plain JSON answer; data of the moment, so never stored."""
    return Response(
        _encode(document), status_code=status_code, media_type=_JSON, headers={"cache-control": "no-store"}
    )


def conditional_response(request: Request, answer: Answer) -> Response:
    """The answer to a ``GET`` that is a pure function of its inputs: 304 where the client has it already."""
    headers = {"etag": answer.etag, "cache-control": "no-cache"}
    wanted = request.headers.get("if-none-match")
    if wanted is not None and _matches(wanted, answer.etag):
        return Response(status_code=304, headers=headers)
    return Response(answer.body, media_type=_JSON, headers=headers)


def _matches(if_none_match: str, etag: str) -> bool:
    tags = [tag.strip() for tag in if_none_match.split(",")]
    return "*" in tags or any(tag.removeprefix("W/") == etag for tag in tags)
