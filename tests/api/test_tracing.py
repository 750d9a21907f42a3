"""Traces go to a collector that the environment names, with the caller's trace as their parent; else there are none."""

import http.server
import threading
from pathlib import Path

import pytest
from service import wait_until

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class Collector(http.server.BaseHTTPRequestHandler):
    """Keeps what is posted to ``/v1/traces``."""

    def do_POST(self):
        self.server.received.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *args):
        pass


@pytest.fixture
def collector():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    server.received = []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def spans(collector):
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    found = []
    for path, body in collector.received:
        assert path == "/v1/traces"
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            names = {one.key: one.value.string_value for one in resource.resource.attributes}
            found += [(names["service.name"], span) for scope in resource.scope_spans for span in scope.spans]
    return found


def test_a_request_is_a_span_of_the_callers_trace(start_service, collector, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_port}")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    service = start_service(WORKER="off")
    headers = {"traceparent": f"00-{TRACE}-{SPAN}-01"}
    secret = {"config": {"mask_token_id": 5, "note": "not for the collector"}}
    service.http.post("/v1/mask-token", json=secret, headers=headers).raise_for_status()
    service.http.get("/livez").raise_for_status()
    service.http.get("/metrics").raise_for_status()
    wait_until(lambda: spans(collector), 20)
    assert service.stop() == 0
    [(name, span)] = spans(collector)
    assert name == "draftport"
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, SPAN)
    assert "/v1/mask-token" in span.name
    assert all(b"not for the collector" not in body for _, body in collector.received)


def test_a_collector_that_is_down_harms_nobody(start_service, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    service = start_service(WORKER="off")
    for _ in range(5):
        service.http.post("/v1/mask-token", json={"config": {"mask_token_id": 5}}).raise_for_status()
    assert service.stop() == 0


@pytest.mark.parametrize("off", [{}, {"OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_EXPORTER": "none"}])
def test_off_by_default_and_when_told(start_service, collector, monkeypatch, off):
    if off:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_port}")
    for name, value in off.items():
        monkeypatch.setenv(name, value)
    service = start_service(WORKER="off")
    service.http.post("/v1/mask-token", json={"config": {"mask_token_id": 5}}).raise_for_status()
    maps = Path(f"/proc/{service.process.pid}/maps").read_text()
    assert service.stop() == 0
    assert collector.received == []
    assert "protobuf" not in maps
