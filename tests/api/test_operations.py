"""What operators and controllers look at: probes, metrics, logs, documentation, the end."""

import json
import re
import subprocess
import sys
import threading

import httpx
from service import clean_environment, wait_until


def test_probes(metadata):
    for path in ("/livez", "/live", "/startupz"):
        assert metadata.http.get(path).json() == {"status": "ok"}
    for path in ("/readyz", "/ready", "/health", "/healthz"):
        answer = metadata.http.get(path).json()
        assert (answer["status"], answer["worker"]["state"]) == ("ok", "disabled")


def test_metrics_count_by_route_and_code_and_never_by_path(metadata):
    for number in range(20):
        metadata.http.get(f"/nowhere/{number}")
        metadata.http.request("BREW", "/v1/mask-token")
    metadata.http.post("/v1/mask-token", json={"config": {}})
    answer = metadata.http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    text = answer.text
    assert "nowhere" not in text
    assert "BREW" not in text
    assert re.search(
        r'draftport_http_requests_total\{code="mask_token_missing",method="POST",route="/v1/mask-token",'
        r'status="422"\} [1-9]',
        text,
    )
    assert "_created" not in text


def test_every_metric_has_help_a_unit_and_a_prefix(service):
    service.http.post("/v1/hidden-states", json={"prompt_token_ids": [[1]], "lease_ttl_s": 1})
    families = re.findall(r"# HELP (\S+) (\S.*)\n# TYPE (\S+) (\w+)", service.http.get("/metrics").text)
    names = {name: kind for name, _, _, kind in families}
    for name, kind in names.items():
        assert name.startswith("draftport_")
        assert kind != "counter" or name.endswith("_total")
    for name in (
        "draftport_http_requests_total", "draftport_http_request_duration_seconds", "draftport_worker_state",
        "draftport_worker_queue_depth", "draftport_worker_batch_fill_ratio", "draftport_slots_leased",
        "draftport_leases_expired_total", "draftport_worker_step_seconds_total", "draftport_worker_tokens_total",
        "draftport_worker_restarts_total", "draftport_config_loads_total",
    ):  # fmt: skip
        assert name in names, sorted(names)


def test_one_log_line_for_a_request_and_none_for_probes(start_service):
    service = start_service(WORKER="off")
    service.http.post("/v1/mask-token", json={"config": {}}, headers={"x-request-id": "find-me"})
    service.http.get("/livez")
    service.http.get("/metrics")
    service.http.get("/version%0aforged")
    assert service.stop() == 0
    lines = service.log_lines()
    assert len(lines) == len(service.log().splitlines()), "every line is JSON"
    access = [line for line in lines if line["logger"] == "draftport.access"]
    assert [line["route"] for line in access] == ["/v1/mask-token", "unmatched"]
    assert access[0]["request_id"] == "find-me"
    assert (access[0]["status"], access[0]["code"]) == (422, "mask_token_missing")
    assert access[0]["duration_ms"] > 0
    assert not any("color_message" in line for line in lines)


def test_the_documentation_needs_no_other_host(metadata):
    page = metadata.http.get("/docs").text
    assert not re.findall(r"""(?:src|href)=["'](?:https?:)?//""", page)
    for path in re.findall(r"""(?:src|href)=["'](/[^"']+)""", page):
        assert metadata.http.get(path).status_code == 200, path


def test_openapi_has_stable_ids_examples_and_no_foreign_errors(metadata):
    document = metadata.http.get("/openapi.json").json()
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    ids = [operation["operationId"] for operation in operations]
    assert len(ids) == len(set(ids))
    assert all(re.fullmatch(r"[a-z][A-Za-z]+", one) for one in ids), ids
    assert all(operation.get("summary") and operation.get("description") for operation in operations)
    assert "HTTPValidationError" not in json.dumps(document)
    for name, schema in document["components"]["schemas"].items():
        if name.endswith("Request") and name != "RenewRequest":
            assert schema.get("examples"), name


def test_sigterm_finishes_what_was_accepted(start_service):
    service = start_service().wait_worker()
    statuses, refused = [], []
    stopping = threading.Event()

    def work():
        with httpx.Client(base_url=service.url, timeout=60) as http:
            while not stopping.is_set():
                body = {"prompt_token_ids": [[1] * 400] * 8}
                try:
                    answer = http.post(
                        "/v1/hidden-states", json=body, headers={"accept": "application/vnd.safetensors"}
                    )
                except httpx.ConnectError:  # nobody listens any more: not accepted
                    refused.append(1)
                    return
                except httpx.TransportError as error:
                    statuses.append(repr(error))
                    return
                statuses.append(answer.status_code)
                if answer.status_code != 200:
                    return

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(statuses) >= 12)
    assert service.stop() == 0
    stopping.set()
    for thread in threads:
        thread.join(60)
    unexpected = [one for one in statuses if one not in (200, 503)]
    # A connection kept alive may close between two requests; a request that was answered half is a loss.
    assert not [one for one in unexpected if "RemoteProtocolError" not in str(one)], unexpected
    assert not service.socket_path.exists()


def test_more_processes_than_one_are_refused_in_words(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "app.cli", "serve", "--workers", "2"],
        capture_output=True, text=True, check=False, timeout=30, env=clean_environment(tmp_path),
    )  # fmt: skip
    assert done.returncode == 2
    assert "one API process" in done.stderr
