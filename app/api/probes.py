"""Probes, metrics and the version: what platforms ask for, answered from memory."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends
from starlette.responses import Response

from ..drafting.engines import NEWEST
from ..transport.messages import PROTOCOL_VERSION
from ..version import __version__
from .answer import json_response
from .answer_schemas import Readiness, Status, VersionInfo
from .context import Context, context_of
from .metrics import CONTENT_TYPE
from .problem import ProblemError

router = APIRouter(tags=["operations"])
Ctx = Annotated[Context, Depends(context_of)]


async def livez() -> Response:
    """200 while this process answers at all; says nothing of the worker."""
    return json_response({"status": "ok"})


async def startupz() -> Response:
    """200 once this process serves requests; says nothing of the worker, so that it delays no other container."""
    return json_response({"status": "ok"})


async def readyz(context: Ctx) -> Response:
    """200 once metadata can be answered; 503 while stopping. The worker's trouble shows, and changes nothing here."""
    return json_response(_readiness(context), 503 if context.stopping else 200)


async def readyz_worker(context: Ctx) -> Response:
    """200 only while the worker is ready: for pods whose point is the hidden states."""
    context.link.session()
    if context.stopping:
        raise ProblemError("stopping", "The service is stopping; ask another replica.")
    return json_response(_readiness(context))


def _readiness(context: Context) -> dict[str, Any]:
    state = context.link.state
    worker: dict[str, Any] = {"state": state.state, "detail": state.detail}
    if state.progress is not None:
        worker["progress"] = state.progress
    return {"status": "stopping" if context.stopping else "ok", "worker": worker}


for _path in ("/livez", "/live"):
    router.get(_path, operation_id=f"get{_path.title().strip('/')}", response_model=Status)(livez)
router.get("/startupz", operation_id="getStartupz", response_model=Status)(startupz)
for _path in ("/readyz", "/ready", "/health", "/healthz"):
    router.get(
        _path,
        operation_id=f"get{_path.title().strip('/')}",
        response_model=Readiness,
        responses={503: {"model": Readiness, "description": "The service is stopping"}},
    )(readyz)
router.get("/readyz/worker", operation_id="getReadyzWorker", response_model=Readiness)(readyz_worker)


@router.get(
    "/metrics",
    operation_id="getMetrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def metrics(context: Ctx) -> Response:
    """Metrics in Prometheus' text format; the worker's are asked for at this moment."""
    stats = await context.link.stats()
    return Response(context.metrics.render(context.link.state, stats), media_type=CONTENT_TYPE)


@router.get("/version", operation_id="getVersion", response_model=VersionInfo)
async def version() -> Response:
    """Versions of the service, of the worker's protocol, and the newest engines that the answers know."""
    return json_response(
        {"version": __version__, "protocol_version": PROTOCOL_VERSION, "newest_known_engines": dict(NEWEST)}
    )
