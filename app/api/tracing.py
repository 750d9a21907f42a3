"""Traces by OpenTelemetry: FastAPI's own instrumentation, switched on by OpenTelemetry's environment variables.

Off unless ``OTEL_EXPORTER_OTLP_ENDPOINT`` or ``OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`` is set. A request's ``traceparent``
(W3C Trace Context) becomes the parent of its span. Metrics stay Prometheus', logs stay on standard error.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, MutableMapping
from typing import Any

from fastapi.telemetry import TelemetryConfig

from .edge import ROUTINE

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_EXPORTER = "opentelemetry.exporter.otlp.proto.http"
OFF: TelemetryConfig = {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}


def is_wanted(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the environment asks for traces."""
    return (
        any(environ.get(name) for name in _ENDPOINTS)
        and environ.get("OTEL_SDK_DISABLED", "").lower() != "true"
        and environ.get("OTEL_TRACES_EXPORTER", "otlp").lower() != "none"
    )


def why_not_possible() -> str | None:
    """What is missing for the traces that are wanted, ``None`` when nothing is."""
    try:
        found = importlib.util.find_spec(_EXPORTER)
    except ModuleNotFoundError:
        found = None
    if found is not None:
        return None
    return (
        "An OpenTelemetry endpoint is set, but the exporter is not installed: install draftport[otel], or unset "
        f"{' and '.join(_ENDPOINTS)}."
    )


def configuration() -> TelemetryConfig:
    """What FastAPI is told: one span for a request, none for probes and metrics."""
    if not is_wanted():
        return OFF
    os.environ.setdefault("OTEL_SERVICE_NAME", "draftport")
    return {
        "tracing": True,
        "metrics": False,
        "logs": False,  # they would carry what a client sent
        "operation_spans": False,
        "auto_configure": True,
        "exclude": _is_routine,
    }


def _is_routine(scope: MutableMapping[str, Any]) -> bool:
    return scope.get("path") in ROUTINE
