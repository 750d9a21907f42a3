"""What the routes share: made once by ``create_app``, found on the application's state."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from fastapi import Request

from ..sources.model_sources import ModelSources
from .answer import AnswerCache
from .auth import TokenFile
from .lease_book import LeaseBook
from .metrics import Metrics
from .worker_link import WorkerLink


@dataclass(slots=True)
class Context:
    """Services and limits of one application.

    Attributes:
        sources: where configs come from.
        link: the worker, or what stands in for it.
        metrics: counters.
        token: the bearer token, ``None`` when everybody may call.
        max_body_bytes: bound on request bodies.
        request_timeout_s: how long a prompt may wait for its hidden states.
        max_leases_per_client: bound on REST leases of one API client.
        expose_region: whether the region descriptor is answered over TCP.
        answers: encoded metadata answers.
        leases: REST leases.
        downloads: bounds how many answers with rows in them are made at a time.
        stopping: set on SIGTERM, shown by ``/readyz``.
    """

    sources: ModelSources
    link: WorkerLink
    metrics: Metrics
    token: TokenFile | None
    max_body_bytes: int
    request_timeout_s: float
    max_leases_per_client: int
    expose_region: bool
    answers: AnswerCache = field(default_factory=AnswerCache)
    leases: LeaseBook = field(default_factory=LeaseBook)
    downloads: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(4))
    stopping: bool = False


def context_of(request: Request) -> Context:
    """The application's context."""
    context: Context = request.app.state.context
    return context
