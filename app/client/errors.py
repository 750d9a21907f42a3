"""What a client raises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct


class FieldProblem(Struct, frozen=True):
    """One field of the request that does not fit."""

    field: str
    code: str
    detail: str


class DraftportError(Exception):
    """Base of everything that a client raises about the service."""


class UnreachableError(DraftportError):
    """Nobody answered, or the connection broke, and retrying did not help."""


class UnexpectedAnswerError(DraftportError):
    """What answered is not Draftport, or not of a version that this client understands.

    Attributes:
        status: the HTTP status.
    """

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(f"HTTP {status}: {detail}")
        self.status = status


class ProblemError(DraftportError):
    """The service answered with a problem (RFC 9457).

    Attributes:
        code: stable snake_case name, for programs: ``mask_token_missing``, ``slab_full``, ...
        status: the HTTP status.
        title: what kind of problem it is.
        detail: what happened and what to do.
        errors: the fields that do not fit.
        retry_after_s: seconds after which to ask again, where the service named some.
        request_id: what the service's log calls this request.
        document: the whole problem with its further members, e.g. ``candidates``.
    """

    def __init__(
        self, document: Mapping[str, Any], *, retry_after_s: float | None, request_id: str | None
    ) -> None:
        self.document = dict(document)
        self.code: str = document["code"]
        self.status: int = document["status"]
        self.title: str = document["title"]
        self.detail: str = document["detail"]
        self.errors = tuple(FieldProblem(**error) for error in document.get("errors") or ())
        self.retry_after_s = retry_after_s
        self.request_id = request_id
        super().__init__(f"{self.code}: {self.detail}")
