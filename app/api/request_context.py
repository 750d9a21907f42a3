"""What log lines and problems say about the request they belong to."""

from __future__ import annotations

import re
import secrets
from contextvars import ContextVar

from starlette.datastructures import Headers

request_id: ContextVar[str | None] = ContextVar("draftport_request_id", default=None)

_ACCEPTED = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")


def request_id_of(headers: Headers) -> str:
    """The caller's ``X-Request-Id``, else the trace id of its W3C ``traceparent``, else a new one."""
    given = headers.get("x-request-id", "")
    if _ACCEPTED.fullmatch(given):
        return given
    trace = _TRACEPARENT.fullmatch(headers.get("traceparent", ""))
    return trace[1] if trace else secrets.token_hex(16)
