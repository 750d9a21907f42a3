"""Wiring: from settings to an ASGI application."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp

from .api import docs, drafting_plan, hidden_states, load_config, mask_token, openapi, probes, tracing
from .api.auth import TokenFile
from .api.body import invalid_fields
from .api.context import Context
from .api.edge import Edge
from .api.metrics import Metrics
from .api.problem import ProblemError, from_status
from .api.supervisor import SpawnConnector
from .api.worker_link import Connector, SocketConnector, WorkerLink
from .settings import Settings
from .sources.errors import SourceError
from .sources.model_sources import ModelSources
from .sources.settings import SourceSettings
from .transport.worker_config import WorkerConfig
from .version import __version__

_DESCRIPTION = """\
Drafting metadata with exactly vLLM's semantics, and drafter hidden states without a copy.

Errors are `application/problem+json` (RFC 9457) with a stable `code`. Every metadata answer is a pure function of its
inputs. Where a bearer token is configured, everything but the probes needs it.
"""


def create_app(settings: Settings) -> ASGIApp:
    """The application; the worker is started when the application is.

    Raises:
        TokenFileError: the token file holds no token.
    """
    context = make_context(settings)

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        context.link.start()
        try:
            yield
        finally:
            context.stopping = True
            await context.link.stop()
            context.sources.close()

    app = FastAPI(
        title="Draftport",
        version=__version__,
        summary="Sidecar for speculative decoding",
        description=_DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        telemetry=tracing.configuration(),
        redirect_slashes=False,
    )
    app.state.context = context
    for module in (probes, mask_token, load_config, drafting_plan, hidden_states):
        app.include_router(module.router)
    docs.install(app)
    openapi.install(app)
    app.add_exception_handler(ProblemError, _answer_problem)
    app.add_exception_handler(SourceError, _answer_source_error)
    app.add_exception_handler(RequestValidationError, _answer_validation_error)
    app.add_exception_handler(HTTPException, _answer_http_error)
    return Edge(app, context)


def make_context(settings: Settings) -> Context:
    """The services behind the routes."""
    metrics = Metrics()
    return Context(
        sources=ModelSources(source_settings(settings)),
        link=WorkerLink(_connector(settings), metrics.restarts.inc),
        metrics=metrics,
        token=None if settings.token_file is None else TokenFile(settings.token_file),
        max_body_bytes=settings.max_body_bytes,
        request_timeout_s=settings.request_timeout_s,
        max_leases_per_client=settings.max_leases_per_client,
        expose_region=settings.expose_region,
    )


def source_settings(settings: Settings) -> SourceSettings:
    """What callers may ask for."""
    return SourceSettings(
        model_roots=tuple(settings.model_roots),
        hub=settings.hub,
        hub_allow=tuple(settings.hub_allow),
        hub_timeout_s=settings.hub_timeout_s,
    )


def worker_config(settings: Settings) -> WorkerConfig:
    """What the worker is told."""
    return WorkerConfig(
        socket_path=str(settings.socket_path),
        socket_group=settings.socket_group,
        target=settings.target,
        revision=settings.revision,
        shown_model=_shown_model(settings),
        draft=settings.draft,
        dtype=settings.dtype,
        device=settings.device,
        capture=settings.capture,
        aux_layer_ids=None if settings.aux_layer_ids is None else tuple(settings.aux_layer_ids),
        hub=settings.hub,
        slots=settings.slots,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        cache_dir=str(settings.cache_dir),
        log_level=settings.log_level,
        log_format=settings.log_format,
    )


def _shown_model(settings: Settings) -> str | None:
    """A hub id or a path below a model root as it stands; of any other path only its last part."""
    target = settings.target
    if target is None or not Path(target).is_dir():
        return target
    path = Path(target).resolve()
    if any(path.is_relative_to(root.resolve()) for root in settings.model_roots):
        return str(path)
    return path.name


def _connector(settings: Settings) -> Connector | None:
    if settings.worker == "off":
        return None
    if settings.worker == "attach":
        return SocketConnector(str(settings.socket_path))
    return SpawnConnector(worker_config(settings))


def _respond(request: Request, problem: ProblemError) -> Response:
    request.scope["draftport.code"] = problem.code
    return Response(
        problem.body(request.url.path), status_code=problem.status, headers=problem.response_headers()
    )


async def _answer_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, ProblemError)  # noqa: S101 - registered for this type only
    return _respond(request, error)


async def _answer_source_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, SourceError)  # noqa: S101 - registered for this type only
    return _respond(request, ProblemError(error.code, error.detail, retry_after_s=error.retry_after_s))


async def _answer_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for this type only
    return _respond(request, invalid_fields(error.errors()))


async def _answer_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for this type only
    problem = from_status(error.status_code)
    problem.headers.update({name.lower(): value for name, value in (error.headers or {}).items()})
    if error.status_code == 405:
        problem.headers["allow"] = _allowed(request) or problem.headers.get("allow", "")
    return _respond(request, problem)


def _allowed(request: Request) -> str:
    """Every method of the path: one route knows only its own."""
    path = getattr(request.scope.get("route"), "path", None)
    methods = request.app.openapi()["paths"].get(path, {})
    return ", ".join(sorted(method.upper() for method in methods))
