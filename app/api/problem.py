"""RFC 9457 problem+json: the one shape of every error, and the one table from codes to HTTP statuses."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from ..sources.errors import SOURCE_ERROR_STATUS

MEDIA_TYPE: Final = "application/problem+json"

# code: (status, title). Clients may rely on both.
PROBLEMS: Final[dict[str, tuple[int, str]]] = {
    "malformed_json": (400, "The request body is not JSON"),
    "unauthorized": (401, "A valid bearer token is needed"),
    "model_not_allowed": (403, "This model may not be asked for"),
    "region_not_exposed": (403, "The region is not exposed over TCP"),
    "not_found": (404, "There is nothing at this path"),
    "model_not_found": (404, "There is no such model"),
    "revision_not_found": (404, "There is no such revision"),
    "config_not_found": (404, "The model has no config.json"),
    "lease_not_found": (404, "There is no such lease"),
    "method_not_allowed": (405, "This method is not allowed here"),
    "not_acceptable": (406, "None of the accepted media types can be had"),
    "lease_expired": (410, "The lease has ended"),
    "request_too_large": (413, "The request body is too large"),
    "unsupported_media_type": (415, "The request body is not declared as JSON"),
    "invalid_request": (422, "The request does not fit the schema"),
    "config_invalid": (422, "The config cannot be read"),
    "mask_token_missing": (422, "The config names no mask token id"),
    "mask_token_invalid": (422, "The config's mask token id is no integer"),
    "vllm_args_invalid": (422, "The vLLM command line cannot be read"),
    "prompt_too_long": (422, "A prompt is too long"),
    "prompts_exceed_slab": (422, "The prompts do not fit into the slab"),
    "token_out_of_range": (422, "A token id is out of range"),
    "empty_prompt": (422, "A prompt is empty"),
    "tokenizer_missing": (422, "The target has no tokenizer"),
    "overloaded": (429, "Too much work is waiting"),
    "internal_error": (500, "Something failed inside"),
    "worker_error": (500, "The forward pass failed"),
    "worker_disabled": (501, "There is no worker"),
    "hub_unauthorized": (502, "The hub refuses this model"),
    "hub_unreachable": (502, "The hub cannot be reached"),
    "worker_unavailable": (503, "The worker is not ready"),
    "worker_restarted": (503, "The worker was restarted"),
    "slab_full": (503, "Every slot is leased"),
    "out_of_memory": (503, "The device is out of memory"),
    "stopping": (503, "The service is stopping"),
    "hub_timeout": (504, "The hub does not answer in time"),
    "deadline_exceeded": (504, "The deadline passed"),
}
_FALLBACK: Final = {404: "not_found", 405: "method_not_allowed", 413: "request_too_large"}


class FieldProblem(msgspec.Struct, frozen=True):
    """One field that does not fit; ``code`` is stable."""

    field: str
    code: str
    detail: str


class ProblemError(Exception):
    """An answer that is an error.

    Args:
        code: a key of ``PROBLEMS``.
        detail: one sentence that says what to do.
        errors: the fields that do not fit.
        retry_after_s: becomes ``Retry-After``, rounded up to whole seconds.
        extra: further members, e.g. ``candidates``.
    """

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        errors: Sequence[FieldProblem] = (),
        retry_after_s: float | None = None,
        extra: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.code = code if code in PROBLEMS else "internal_error"
        self.detail = detail
        self.errors = tuple(errors)
        self.retry_after_s = retry_after_s
        self.extra = dict(extra or {})
        self.headers = dict(headers or {})

    @property
    def status(self) -> int:
        """The HTTP status of the code."""
        return PROBLEMS[self.code][0]

    def body(self, instance: str) -> bytes:
        """The problem document; ``instance`` is the request's path."""
        status, title = PROBLEMS[self.code]
        document: dict[str, Any] = {
            "type": f"urn:draftport:problem:{self.code}",
            "title": title,
            "status": status,
            "detail": self.detail,
            "instance": instance,
            "code": self.code,
            "message": self.detail,
        }
        if self.errors:
            document["errors"] = self.errors
        return msgspec.json.encode(document | self.extra)

    def response_headers(self) -> dict[str, str]:
        """Headers of the answer, ``Retry-After`` included."""
        headers = {"content-type": MEDIA_TYPE, "cache-control": "no-store", **self.headers}
        if self.retry_after_s is not None:
            headers["retry-after"] = str(max(1, math.ceil(self.retry_after_s)))
        return headers


def invalid(field: str, detail: str, code: str = "invalid") -> ProblemError:
    """``invalid_request`` about one field."""
    return ProblemError("invalid_request", f"{field}: {detail}", errors=[FieldProblem(field, code, detail)])


def from_status(status: int) -> ProblemError:
    """The problem for an HTTP error that the framework raised by itself."""
    code = _FALLBACK.get(status, "invalid_request" if status < 500 else "internal_error")
    detail = {
        "not_found": "Look up the paths in /openapi.json.",
        "method_not_allowed": "Use one of the methods in the Allow header.",
    }.get(code, PROBLEMS[code][1] + ".")
    return ProblemError(code, detail)


if not all(PROBLEMS[code][0] == status for code, status in SOURCE_ERROR_STATUS.items()):
    raise AssertionError("the model sources and REST disagree about a status")
