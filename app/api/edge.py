"""The outermost ASGI layer: request id, authentication, the access log, metrics, and the last resort for exceptions.

One plain ASGI class: every ``BaseHTTPMiddleware`` would cost more than a metadata answer itself.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .context import Context
from .problem import MEDIA_TYPE, ProblemError, from_status
from .request_context import request_id, request_id_of

_access = logging.getLogger("draftport.access")
_logger = logging.getLogger(__name__)

PROBES = frozenset(
    {"/livez", "/live", "/startupz", "/readyz", "/ready", "/health", "/healthz", "/readyz/worker"}
)
# Asked every few seconds: no line at info.
ROUTINE = PROBES | {"/metrics"}
UNMATCHED = "unmatched"
_METHODS = frozenset({"GET", "POST", "DELETE", "HEAD", "PUT", "PATCH", "OPTIONS"})


class Edge:
    """Wraps the application.

    Args:
        app: the FastAPI application.
        context: its context.
    """

    def __init__(self, app: ASGIApp, context: Context) -> None:
        self._app = app
        self.context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        exchange = _Exchange(scope, send, request_id_of(headers), self.context)
        reset = request_id.set(exchange.request_id)
        self.context.metrics.in_flight.inc()
        try:
            refusal = self._refusal(scope, headers)
            if refusal is not None:
                await exchange.send_problem(refusal)
            else:
                await self._app(scope, receive, exchange.send)
        except Exception:
            # Whatever it was, the client learns that it was ours, and nothing else; the log has the rest.
            _logger.exception("unhandled exception")
            if not exchange.started:
                detail = f"Report it with the request id {exchange.request_id}; the log has the cause."
                await exchange.send_problem(ProblemError("internal_error", detail))
        finally:
            self.context.metrics.in_flight.dec()
            self._note(exchange)
            request_id.reset(reset)

    def _refusal(self, scope: Scope, headers: Headers) -> ProblemError | None:
        token = self.context.token
        if token is None or scope["path"] in PROBES:
            return None
        given = headers.get("authorization")
        if token.allows(given.encode("latin-1") if given is not None else None):
            return None
        detail = "Send the header 'Authorization: Bearer <token>' with the token of DRAFTPORT_TOKEN_FILE."
        return ProblemError("unauthorized", detail, headers={"www-authenticate": 'Bearer realm="draftport"'})

    def _note(self, exchange: _Exchange) -> None:
        route = exchange.route
        method = exchange.method
        seconds = time.perf_counter() - exchange.started_at
        metrics = self.context.metrics
        metrics.requests.labels(route, method, str(exchange.status), exchange.code).inc()
        metrics.seconds.labels(route, method).observe(seconds)
        level = logging.DEBUG if exchange.path in ROUTINE else logging.INFO
        if _access.isEnabledFor(level):
            _access.log(
                level,
                "%s %s %s",
                method,
                exchange.logged_path,
                exchange.status,
                extra={
                    "route": route,
                    "status": exchange.status,
                    "code": exchange.code or None,
                    "duration_ms": round(seconds * 1e3, 3),
                    "client": exchange.client,
                },
            )


class _Exchange:
    """One request and what has been answered so far."""

    def __init__(self, scope: Scope, send: Send, request_id_text: str, context: Context) -> None:
        self._scope = scope
        self._context = context
        self._send = send
        self.request_id = request_id_text
        self.path: str = scope["path"]
        self.started_at = time.perf_counter()
        self.started = False
        self.status = 0
        self.code = ""
        self._replaced = False

    @property
    def logged_path(self) -> str:
        """The path as it was sent: percent-encoded, so it can forge no log line."""
        raw: bytes = self._scope.get("raw_path") or b""
        return raw[:256].decode("latin-1")

    @property
    def route(self) -> str:
        """The route's template: bounded, unlike paths."""
        route = self._scope.get("route")
        return getattr(route, "path", UNMATCHED) if route is not None else UNMATCHED

    @property
    def method(self) -> str:
        """The method, bounded too."""
        method: str = self._scope["method"]
        return method if method in _METHODS else "OTHER"

    @property
    def client(self) -> str | None:
        """The peer's address."""
        client = self._scope.get("client")
        return client[0] if client else None

    async def send(self, message: Message) -> None:
        """Passes the answer on, with the request id; turns the framework's plain-text errors into problems."""
        if message["type"] == "http.response.start":
            headers = MutableHeaders(raw=message.setdefault("headers", []))
            status: int = message["status"]
            if status >= 400 and headers.get("content-type", "") != MEDIA_TYPE:
                self._replaced = True
                await self.send_problem(from_status(status), allow=headers.get("allow"))
                return
            self.started, self.status = True, status
            self.code = self._scope.get("draftport.code", "")
            headers["x-request-id"] = self.request_id
            if self._context.stopping:
                headers["connection"] = "close"
            headers["x-content-type-options"] = "nosniff"
        elif self._replaced:
            return
        await self._send(message)

    async def send_problem(self, problem: ProblemError, *, allow: str | None = None) -> None:
        """Answers with a problem."""
        body = problem.body(self.path)
        fields = problem.response_headers() | {
            "content-length": str(len(body)),
            "x-request-id": self.request_id,
        }
        if allow:
            fields["allow"] = allow
        if self._context.stopping:
            fields["connection"] = "close"
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields.items()]
        self.started, self.status, self.code = True, problem.status, problem.code
        start: dict[str, Any] = {"type": "http.response.start", "status": problem.status, "headers": raw}
        await self._send(start)
        await self._send({"type": "http.response.body", "body": b"" if self.method == "HEAD" else body})
