"""What both clients share: how a call becomes an HTTP request, and an HTTP response an answer or an error."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, TypeVar

import httpx
import msgspec
from httpx_retries import Retry

from .calls import JSON, Call
from .errors import ProblemError, UnexpectedAnswerError

PROBLEM = "application/problem+json"
CONNECT_TIMEOUT_S = 5.0
RETRIED_STATUS = (429, 502, 503, 504)
NEVER = Retry(total=0)
_Answer = TypeVar("_Answer")


def retry_policy(retries: int) -> Retry:
    """Back-off that honours ``Retry-After``; no single wait over 30 s, nor all together over 2 minutes.

    Every call may be repeated: metadata answers depend on the request alone, and leases of an answer that got lost
    end by themselves. A read time-out is not retried: the caller chose how long to wait.
    """
    return Retry(
        total=retries,
        allowed_methods=("GET", "POST", "DELETE"),
        status_forcelist=RETRIED_STATUS,
        retry_on_exceptions=(httpx.ConnectTimeout, httpx.NetworkError, httpx.RemoteProtocolError),
        backoff_factor=0.1,
        max_backoff_wait=30.0,
        total_timeout=120.0,
    )


def timeouts(timeout_s: float) -> httpx.Timeout:
    """``timeout_s`` to wait for bytes; to connect, less."""
    return httpx.Timeout(timeout_s, connect=min(timeout_s, CONNECT_TIMEOUT_S))


class BearerToken(httpx.Auth):
    """Sends the bearer token; one from a file is read anew for each request, as the file may be rotated."""

    def __init__(self, token: str | None, token_file: str | os.PathLike[str] | None) -> None:
        if token is not None and token_file is not None:
            raise ValueError("give at most one of token and token_file")
        self._token = token
        self._token_file = token_file

    def auth_flow(self, request: httpx.Request) -> Any:
        """Sets the header."""
        token = self._token
        if self._token_file is not None:
            token = Path(self._token_file).read_text().strip()
        if token:
            request.headers["authorization"] = f"Bearer {token}"
        yield request


def request_of(client: httpx.Client | httpx.AsyncClient, call: Call[Any]) -> httpx.Request:
    """The HTTP request of a call."""
    headers = {"accept": f"{call.accept}, {PROBLEM};q=0.9"}
    if call.body is not None:
        headers["content-type"] = JSON
    # Readiness is a question about this moment.
    extensions = {"retry": NEVER} if call.path == "/readyz" else {}
    return client.build_request(
        call.method, call.path, content=call.body, headers=headers, extensions=extensions
    )


def answer_of(call: Call[_Answer], response: httpx.Response) -> _Answer:
    """The answer in a response.

    Raises:
        ProblemError: the service answered with a problem.
        UnexpectedAnswerError: it is no answer of this service.
    """
    media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type == PROBLEM:
        raise _problem(response)
    if response.is_error and call.path != "/readyz":
        raise UnexpectedAnswerError(
            response.status_code, f"{response.url} answered with {media_type or 'nothing'}"
        )
    if call.answer is None:
        return None  # type: ignore[return-value]  # Call[None]
    if call.answer is bytes:
        return response.content  # type: ignore[return-value]  # Call[bytes]
    try:
        answer: _Answer = msgspec.json.decode(response.content, type=call.answer)
    except (msgspec.DecodeError, ValueError) as error:
        detail = f"the answer of {response.url} does not fit this client: {error}"
        raise UnexpectedAnswerError(response.status_code, detail) from error
    return answer


def _problem(response: httpx.Response) -> ProblemError | UnexpectedAnswerError:
    after = response.headers.get("retry-after", "")
    try:
        return ProblemError(
            msgspec.json.decode(response.content, type=dict[str, Any]),
            retry_after_s=float(after) if after.isascii() and after.isdigit() else None,
            request_id=response.headers.get("x-request-id"),
        )
    except (msgspec.DecodeError, KeyError, TypeError):
        return UnexpectedAnswerError(
            response.status_code, f"{response.url} answered with a problem without code"
        )
