"""The clients against the real service, and against a server that misbehaves as services and proxies do."""

import asyncio
import http.server
import json
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import numpy as np
import pytest
import safetensors.numpy
from service import clean_environment

from app.client import (
    AsyncDraftportClient,
    DraftportClient,
    ProblemError,
    UnexpectedAnswerError,
    UnreachableError,
)
from app.reader import Region

DFLASH = {"architectures": ["DFlashDraftModel"], "dflash_config": {"mask_token_id": 7}, "vocab_size": 100}


class Waiting:
    """The asynchronous client, each call run to its end: so that one body tests both."""

    def __init__(self, url, **options):
        self.runner = asyncio.Runner()
        self.client = self.runner.run(self.made(url, options))

    async def made(self, url, options):
        return AsyncDraftportClient(url, **options)

    def __getattr__(self, name):
        def call(*args, **named):
            return self.runner.run(getattr(self.client, name)(*args, **named))

        return call

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.runner.run(self.client.aclose())
        self.runner.close()


@pytest.fixture(params=[DraftportClient, Waiting], ids=["sync", "async"])
def make(request):
    return request.param


@pytest.fixture
def client(make, service):
    with make(service.url) as client:
        yield client


def test_metadata_comes_as_types(client):
    answer = client.mask_token(config=DFLASH, engine="vllm==0.27.1")
    assert (answer.mask_token_id, answer.source, answer.method) == (
        7,
        "dflash_config.mask_token_id",
        "dflash",
    )
    assert answer.engine.version == "0.27.1"
    assert answer.model.id is None
    assert len(answer.model.config_sha256) == 64
    configs = client.load_config({"load_format": "fastsafetensors"}, pipeline_parallel_size=2)
    assert configs.reason == "pp_collective_loader"
    assert (configs.target.load_format, configs.draft.load_format) == ("fastsafetensors", "auto")
    assert client.ready().worker.state == "ready"
    assert client.version().newest_known_engines["vllm"]


def test_an_id_beyond_64_bits_survives(client):
    assert client.mask_token(config={"mask_token_id": 10**30}).mask_token_id == 10**30


def test_problems_carry_code_fields_and_document(client):
    with pytest.raises(ProblemError) as raised:
        client.mask_token(config={"mask_token": 5})
    problem = raised.value
    assert (problem.code, problem.status) == ("mask_token_missing", 422)
    assert problem.document["candidates"] == []
    assert problem.detail in str(problem)
    assert problem.request_id
    with pytest.raises(ProblemError) as raised:
        client.load_config({"load_format": 5}, pipeline_parallel_size=0)
    assert raised.value.code == "invalid_request"
    assert "pipeline_parallel_size" in {error.field for error in raised.value.errors}


def test_leases_rows_and_downloads_agree(client, service):
    prompts = [[1, 2, 3], [4, 5]]
    target = client.target()
    leased = client.hidden_states(prompts, lease_ttl_s=20)
    assert [lease.shape for lease in leased.leases] == [[3, target.hidden_size], [2, target.hidden_size]]
    downloaded = safetensors.numpy.load(client.download_hidden_states(prompts))
    with Region.attach(service.socket_path) as region:
        for index, described in enumerate(leased.leases):
            one = safetensors.numpy.load(client.lease_tensor(described.lease_id))
            with region.open(described) as lease:
                rows = lease.tensor(copy=True).numpy()
                lease.check()
            np.testing.assert_array_equal(rows, one["hidden_states"])
            np.testing.assert_allclose(rows, downloaded[f"hidden_states.{index}"], rtol=1e-5, atol=1e-6)
            assert one["token_ids"].tolist() == prompts[index]
    [first, second] = leased.leases
    renewed = client.renew_lease(first.lease_id, 40)
    assert renewed.lease.expires_at > first.expires_at
    assert client.region().epoch == renewed.epoch == leased.epoch
    for lease in (first, second, first):
        client.release_lease(lease.lease_id)
    with pytest.raises(ProblemError) as raised:
        client.lease_tensor(first.lease_id)
    assert raised.value.code == "lease_expired"
    with pytest.raises(ProblemError) as raised:
        client.release_lease("../../livez")
    assert raised.value.status in (404, 422)


class Script(http.server.BaseHTTPRequestHandler):
    """Answers with what the test wrote down, the last entry again and again."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.server.seen.append(dict(self.headers))
        index = min(len(self.server.seen) - 1, len(self.server.script) - 1)
        status, headers, body = self.server.script[index]
        if status is None:
            self.close_connection = True
            return
        self.send_response(status)
        for name, value in ({"content-length": str(len(body))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST  # noqa: N815

    def log_message(self, *args):
        pass


@pytest.fixture
def scripted():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Script)
    server.seen, server.script = [], []
    server.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def problem(status, code, **headers):
    document = {"title": "t", "status": status, "detail": "Wait.", "code": code}
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    return status, {"content-type": "application/problem+json", **headers}, json.dumps(document).encode()


VERSION = (200, {"content-type": "application/json"},
           b'{"version": "9", "protocol_version": 1, "newest_known_engines": {}, "new": 1}')  # fmt: skip


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_passing_trouble_is_retried_after_the_time_named(make, scripted, status):
    scripted.script = [problem(status, "slab_full", retry_after="1"), (None, {}, b""), VERSION]
    with make(scripted.url) as client:
        assert client.version().version == "9"
    assert len(scripted.seen) == 3


def test_lasting_trouble_ends_as_a_problem_with_its_retry_after(make, scripted):
    scripted.script = [problem(503, "slab_full", retry_after="7")]
    with make(scripted.url, retries=0) as client, pytest.raises(ProblemError) as raised:
        client.hidden_states([[1]])
    assert (raised.value.code, raised.value.retry_after_s) == ("slab_full", 7.0)
    assert len(scripted.seen) == 1


@pytest.mark.parametrize(
    "code", [(400, "malformed_json"), (404, "model_not_found"), (501, "worker_disabled")]
)
def test_lasting_refusals_are_not_retried(make, scripted, code):
    scripted.script = [problem(*code)]
    with make(scripted.url) as client, pytest.raises(ProblemError):
        client.target()
    assert len(scripted.seen) == 1


@pytest.mark.parametrize(
    "answer",
    [
        (200, {"content-type": "text/html"}, b"<html>a captive portal</html>"),
        (500, {"content-type": "text/html"}, b"<html>a proxy</html>"),
        (200, {"content-type": "application/json"}, b'{"version": 5}'),
        (200, {"content-type": "application/json"}, b"\xff"),
        (422, {"content-type": "application/problem+json"}, b'{"title": "no code"}'),
        (422, {"content-type": "application/problem+json"}, b"[]"),
    ],
)
def test_an_answer_of_something_else_is_told_apart(make, scripted, answer):
    scripted.script = [answer]
    with make(scripted.url, retries=0) as client, pytest.raises(UnexpectedAnswerError):
        client.version()


def test_nobody_there(make):
    with (
        make("http://127.0.0.1:9", retries=1) as client,
        pytest.raises(UnreachableError, match="does not answer"),
    ):
        client.version()


def test_the_token_file_is_read_for_each_request(make, scripted, tmp_path):
    scripted.script = [VERSION]
    token_file = tmp_path / "token"
    with make(scripted.url, token_file=token_file) as client:
        for token in ("one", "two"):
            token_file.write_text(f"{token}\n")
            client.version()
    assert [seen["authorization"] for seen in scripted.seen] == ["Bearer one", "Bearer two"]
    with pytest.raises(ValueError, match="at most one"):
        DraftportClient(token="a", token_file=token_file)


def test_a_slow_answer_is_not_waited_for_twice(scripted):
    class Slow(httpx.BaseTransport):
        calls = 0

        def handle_request(self, request):
            Slow.calls += 1
            raise httpx.ReadTimeout("slow", request=request)

    with DraftportClient(transport=Slow()) as client, pytest.raises(UnreachableError):
        client.version()
    assert Slow.calls == 1


def test_importing_the_client_is_light(tmp_path):
    script = "import sys, app.client; print({'fastapi', 'torch', 'numpy', 'pydantic'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env=clean_environment(Path(tmp_path)),
    )
    assert done.stdout == "set()\n"
