"""What comes in is hostile: every answer is a problem that says what to do, and the next request is fine."""

import socket
import time

import pytest

JSON = {"content-type": "application/json"}
LOAD = {"load_config": {"load_format": "auto"}, "pipeline_parallel_size": 1}


@pytest.fixture(autouse=True)
def _the_next_request_is_fine(metadata):
    yield
    answer = metadata.http.post("/v1/mask-token", json={"config": {"mask_token_id": 5}})
    assert answer.json()["mask_token_id"] == 5


@pytest.mark.parametrize("path", ["/v1/mask-token", "/v1/load-config", "/v1/drafting-plan"])
@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "malformed_json"),
        (b"{", 400, "malformed_json"),
        (b"\xff\xfe", 400, "malformed_json"),
        (b"{'a': 1}", 400, "malformed_json"),
        (b'{"config": {}} trailing', 400, "malformed_json"),
        (b"[" * 200_000, 400, "malformed_json"),
        (b'{"config": ' + b'{"a": ' * 5000 + b"1" + b"}" * 5001, 400, "malformed_json"),
        (b"null", 422, "invalid_request"),
        (b"[]", 422, "invalid_request"),
        (b'"text"', 422, "invalid_request"),
        (b"{}", 422, "invalid_request"),
        (b'{"unknown": 1}', 422, "invalid_request"),
        (b'{"engine": NaN}', 422, "invalid_request"),
        (b'{"engine": Infinity}', 422, "invalid_request"),
        (b'{"engine": 1e999}', 422, "invalid_request"),
        (b'{"engine": "vllm", "engine": "vllm"}', 422, "invalid_request"),
        (b'{"engine": "\\ud800"}', (400, 422), None),
    ],
    ids=lambda value: repr(value)[:32],
)
def test_bodies(metadata, is_problem, path, *, body, status, code):
    answer = metadata.http.post(path, content=body, headers=JSON)
    if code is None:
        assert answer.status_code in status
        return
    is_problem(answer, status, code)


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/mask-token", {"config": []}, "config"),
        ("/v1/mask-token", {"config": {}, "model": "a/b"}, ""),
        ("/v1/mask-token", {"model": 5}, "model"),
        ("/v1/mask-token", {"model": "x" * 5000}, "model"),
        ("/v1/mask-token", {"config": {}, "revision": "main"}, ""),
        ("/v1/mask-token", {"config": {}, "target": {}}, "target"),
        ("/v1/mask-token", {"config": {}, "target": {"model": "a/b", "x": 1}}, "target.x"),
        ("/v1/mask-token", {"config": {"mask_token_id": 1}, "engine": "llama.cpp"}, "engine.name"),
        ("/v1/mask-token", {"config": {"mask_token_id": 1}, "engine": {"name": "vllm", "version": "new version"}},
         "engine.version"),
        ("/v1/load-config", LOAD | {"pipeline_parallel_size": 0}, "pipeline_parallel_size"),
        ("/v1/load-config", LOAD | {"pipeline_parallel_size": "2"}, "pipeline_parallel_size"),
        ("/v1/load-config", LOAD | {"pipeline_parallel_size": True}, "pipeline_parallel_size"),
        ("/v1/load-config", LOAD | {"pipeline_parallel_size": 2.0}, "pipeline_parallel_size"),
        ("/v1/load-config", LOAD | {"pipeline_parallel_size": 10**30}, "pipeline_parallel_size"),
        ("/v1/load-config", LOAD | {"load_config": {"load_format": None}}, "load_config.load_format"),
        ("/v1/load-config", LOAD | {"load_config": {"format": "auto"}}, "load_config.format"),
        ("/v1/load-config", LOAD | {"load_config": {"safetensors_prefetch_num_threads": 0}},
         "load_config.safetensors_prefetch_num_threads"),
        ("/v1/load-config", LOAD | {"draft_load_config": {"use_tqdm_on_load": "yes"}},
         "draft_load_config.use_tqdm_on_load"),
        ("/v1/load-config", LOAD | {"method": "magic"}, "method"),
    ],
    ids=lambda value: str(value)[:50],
)  # fmt: skip
def test_fields_that_do_not_fit_are_named(metadata, is_problem, path, body, field):
    document = is_problem(metadata.http.post(path, json=body), 422, "invalid_request")
    assert any(error["field"].startswith(field) for error in document["errors"]), document
    assert all(error["code"] and error["detail"] for error in document["errors"])


@pytest.mark.parametrize(
    "query",
    [
        "load_format=auto&pipeline_parallel_size=x", "load_format=auto&pipeline_parallel_size=-1",
        "load_format=auto&pipeline_parallel_size=1&unknown=1", "pipeline_parallel_size=",
        "load_format=auto&pipeline_parallel_size=1&engine=%00",
        "load_format=auto&pipeline_parallel_size=1&revision=main", "load_format=auto&engine=" + "0" * 200,
    ],
)  # fmt: skip
def test_query_strings(metadata, is_problem, query):
    is_problem(metadata.http.get(f"/v1/load-config?{query}"), 422, "invalid_request")


def test_nan_is_fine_inside_a_config(metadata):
    body = b'{"config": {"mask_token_id": 3, "scale": NaN, "limit": -Infinity}}'
    assert metadata.http.post("/v1/mask-token", content=body, headers=JSON).json()["mask_token_id"] == 3


def test_of_duplicate_keys_in_a_config_the_last_wins_with_a_finding(metadata):
    body = b'{"config": {"mask_token_id": 3, "mask_token_id": 4}}'
    answer = metadata.http.post("/v1/mask-token", content=body, headers=JSON).json()
    assert answer["mask_token_id"] == 4
    assert ["mask_token_id"] in [
        one["fields"] for one in answer["findings"] if one["code"] == "duplicate_keys"
    ]


@pytest.mark.parametrize(
    ("model", "status", "code"),
    [
        ("{models}/org/../../secret", 403, "model_not_allowed"),
        ("{models}/../secret", 403, "model_not_allowed"),
        ("{models}/out", 403, "model_not_allowed"),
        ("{models}/file-out", 403, "model_not_allowed"),
        ("{models}/org/drafter/config.json", 404, "model_not_found"),
        ("{models}/missing", 404, "model_not_found"),
        ("{models}/empty", 404, "config_not_found"),
        ("{models}/broken", 422, "config_invalid"),
        ("{models}/list", 422, "config_invalid"),
        ("/etc", 403, "model_not_allowed"),
        ("/", 403, "model_not_allowed"),
        ("/proc/self", 403, "model_not_allowed"),
        ("org/drafter", 403, "model_not_allowed"),
        ("../secret", 422, "invalid_request"),
        ("file:///etc", 422, "invalid_request"),
        ("http://127.0.0.1/x", 422, "invalid_request"),
        ("", 422, "invalid_request"),
    ],
)
def test_names_of_models(metadata, is_problem, model, status, code):
    model = model.format(models=metadata.models)
    for answer in (
        metadata.http.get("/v1/mask-token", params={"model": model}),
        metadata.http.post("/v1/mask-token", json={"model": model}),
    ):
        assert answer.status_code in (status, 403, 422), answer.text
        document = is_problem(answer, answer.status_code, answer.json()["code"])
        assert document["code"] == code or answer.status_code == 422
        assert "secret" not in document["detail"] or "secret" in model


def test_a_percent_encoded_way_out_is_one_too(metadata):
    query = f"model={metadata.models}/%2e%2e/secret"
    assert metadata.http.get(f"/v1/mask-token?{query}").status_code in (403, 422)


def test_too_much(metadata, is_problem):
    huge = b'{"config": {"a": "' + b"x" * (5 << 20) + b'"}}'
    is_problem(metadata.http.post("/v1/mask-token", content=huge, headers=JSON), 413, "request_too_large")

    def chunks():
        for _ in range(80):
            yield b" " * 65536

    is_problem(metadata.http.post("/v1/mask-token", content=chunks(), headers=JSON), 413, "request_too_large")


@pytest.mark.parametrize(
    "media_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]
)
def test_other_media_types(metadata, is_problem, media_type):
    answer = metadata.http.post("/v1/mask-token", content=b"{}", headers={"content-type": media_type})
    is_problem(answer, 415, "unsupported_media_type")


def test_paths_and_methods_that_are_not_there(metadata, is_problem):
    is_problem(metadata.http.get("/v2/nothing"), 404, "not_found")
    is_problem(metadata.http.get("/v1/mask-token/"), 404, "not_found")
    answer = metadata.http.put("/v1/mask-token")
    is_problem(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == "GET, POST"


RAW = [
    b"GET / HTTP/9.9\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 50,
    b"POST /v1/mask-token HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\ncontent-length: 20\r\n\r\n",
    b"POST /v1/mask-token HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nZZZ\r\n",
    b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET /livez HTTP/1.1\r\nhost: x\r\n" + b"x: y\r\n" * 20_000 + b"\r\n",
]


@pytest.mark.parametrize("data", RAW, ids=range(len(RAW)))
def test_what_is_no_http(metadata, data):
    with socket.create_connection(("127.0.0.1", metadata.port), timeout=10) as sock:
        try:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            answer = sock.recv(65536)
        except OSError:
            answer = b""
    assert not answer.startswith(b"HTTP/1.1 5")


def test_a_slow_body_blocks_nobody(metadata):
    head = b"POST /v1/mask-token HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{"
    socks = [socket.create_connection(("127.0.0.1", metadata.port), timeout=10) for _ in range(50)]
    for sock in socks:
        sock.sendall(head)
    started = time.monotonic()
    assert metadata.http.get("/livez").status_code == 200
    assert time.monotonic() - started < 5
    for sock in socks:
        sock.close()


def test_a_request_id_is_kept_only_when_it_is_harmless(metadata):
    kept = metadata.http.get("/livez", headers={"x-request-id": "abc-123"})
    assert kept.headers["x-request-id"] == "abc-123"
    for bad in ("x" * 1000, 'a"b{}', "ü"):
        answer = metadata.http.get("/livez", headers={"x-request-id": bad.encode()})
        assert answer.headers["x-request-id"] != bad
