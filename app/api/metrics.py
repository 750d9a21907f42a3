"""Prometheus metrics. One process, so no multiprocess mode; the worker's numbers are asked for when scraped."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..transport.messages import StatsReply, WorkerState
from ..version import __version__

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
STATES = ("disabled", "starting", "loading", "ready", "restarting", "stopping", "failed")
# A second series for each counter, which nobody asks for.
disable_created_metrics()  # type: ignore[no-untyped-call]  # the library is untyped here
_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """The registry and what is counted in this process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "draftport_http_requests_total",
            "Requests answered, by route, method, status and problem code",
            ["route", "method", "status", "code"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "draftport_http_request_duration_seconds",
            "Time from the request's head to the end of its answer",
            ["route", "method"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.in_flight = Gauge(
            "draftport_http_requests_in_flight", "Requests being answered", registry=self.registry
        )
        self.restarts = Counter(
            "draftport_worker_restarts_total", "Times the worker was started again", registry=self.registry
        )
        self.config_loads = Counter(
            "draftport_config_loads_total",
            "Configs asked for by name: read (ok), remembered (memory), the hub's cache instead of the hub (cache), or the "
            "problem's code",
            ["source", "outcome"],
            registry=self.registry,
        )
        info = Gauge("draftport_build_info", "Always 1", ["version"], registry=self.registry)
        info.labels(__version__).set(1)

    def render(self, state: WorkerState, stats: StatsReply | None) -> bytes:
        """The text format: what is counted here, and the worker's state and numbers of this moment."""
        return generate_latest(self.registry) + generate_latest(_worker_registry(state, stats))


class _WorkerCollector(Collector):
    def __init__(self, state: WorkerState, stats: StatsReply | None) -> None:
        self._state = state
        self._stats = stats

    def collect(self) -> Iterable[Metric]:
        states = GaugeMetricFamily(
            "draftport_worker_state", "1 for the state that the worker is in", labels=["state"]
        )
        for name in STATES:
            states.add_metric([name], float(name == self._state.state))
        yield states
        if self._stats is not None:
            yield from _stats_metrics(self._stats)


def _stats_metrics(stats: StatsReply) -> Iterable[Metric]:
    for name, text, value in (
        ("steps", "Forward steps run since the worker's start", stats.steps),
        ("step_seconds", "Seconds spent in forward steps", stats.step_seconds_total),
        ("tokens", "Prompt tokens run", stats.tokens),
        ("prompts", "Prompts run", stats.prompts),
        ("forwards_rejected", "Forward calls refused because of load or a full slab", stats.rejected),
        ("forwards_cancelled", "Forward calls given up by their callers", stats.cancelled),
    ):
        yield CounterMetricFamily(f"draftport_worker_{name}", text, value=value)
    yield CounterMetricFamily(
        "draftport_leases_expired", "Holds that ended at their deadline", value=stats.leases_expired
    )
    fill = stats.tokens / stats.rows_capacity_total if stats.rows_capacity_total else 0.0
    for name, text, value in (
        ("worker_batch_fill_ratio", "Tokens run per token that the steps had room for, since start", fill),
        ("worker_queue_depth", "Prompts waiting for a step", stats.queue_depth),
        ("worker_queue_tokens", "Tokens waiting for a step", stats.queue_tokens),
        ("worker_connections", "Connections to the worker's socket", stats.connections),
        ("leases_active", "Leases with at least one holder", stats.leases_active),
        ("slots", "Slots of the slab", stats.slots_total),
        ("slots_leased", "Slots with at least one lease", stats.slots_leased),
    ):
        yield GaugeMetricFamily(f"draftport_{name}", text, value=value)


def _worker_registry(state: WorkerState, stats: StatsReply | None) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(_WorkerCollector(state, stats))
    return registry
