"""``/v1/target``, ``/v1/hidden-states`` and its leases, over the real service with the demo target."""

import json
import re
import time

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from service import wait_until

SAFETENSORS = "application/vnd.safetensors"
PATH = "/v1/hidden-states"


@pytest.fixture
def post(service):
    def send(headers=None, **body):
        return service.http.post(PATH, json=body, headers=headers)

    return send


@pytest.fixture
def leased(post, service):
    """``leased(prompts, **body) -> answer's document``; its leases are ended with the test."""
    ids = []

    def take(prompts, **body):
        answer = post(prompt_token_ids=prompts, **body)
        assert answer.status_code == 200, answer.text
        ids.extend(lease["lease_id"] for lease in answer.json()["leases"])
        return answer.json()

    yield take
    for lease_id in ids:
        service.http.delete(f"{PATH}/leases/{lease_id}")


def tensors_of(answer):
    assert answer.headers["content-type"] == SAFETENSORS
    return safetensors.numpy.load(answer.content)


def test_the_target(service):
    target = service.http.get("/v1/target").json()
    assert target["architecture"] == "Qwen3ForCausalLM"
    hidden = target["hidden_states"]
    assert (hidden["source"], hidden["norm"], hidden["width"]) == ("final", "post", target["hidden_size"])
    assert hidden["rows"] == target["max_num_batched_tokens"]
    assert hidden["buffer_bytes"] == hidden["rows"] * hidden["bytes_per_token"]
    assert target["device"] == {"type": "cpu", "uuid": None, "name": target["device"]["name"]}


def test_leases_describe_their_rows(leased, service):
    prompts = [[1, 2, 3], [4], [5] * 200]
    document = leased(prompts)
    region = service.http.get(f"{PATH}/region").json()
    assert document["epoch"] == region["epoch"]
    for index, (lease, prompt) in enumerate(zip(document["leases"], prompts, strict=True)):
        assert (lease["index"], lease["num_tokens"], lease["token_ids"]) == (index, len(prompt), prompt)
        assert lease["shape"] == [len(prompt), region["width"]]
        assert lease["axes"] == ["token", "hidden"]
        assert lease["sequence"] % 2 == 0
        assert lease["byte_size"] == len(prompt) * region["row_bytes"]
        inside = lease["byte_offset"] - lease["slot"] * region["slot_bytes"]
        assert inside == lease["row_start"] * region["row_bytes"]
        assert len(lease["lease_id"]) == 32


def test_the_tensor_is_the_rows(leased, service):
    document = leased([[9, 8, 7, 6]])
    [lease] = document["leases"]
    answer = service.http.get(f"{PATH}/leases/{lease['lease_id']}/tensor")
    tensors = tensors_of(answer)
    assert tensors["hidden_states"].shape == tuple(lease["shape"])
    assert tensors["token_ids"].tolist() == [9, 8, 7, 6]
    again = tensors_of(service.http.get(f"{PATH}/leases/{lease['lease_id']}/tensor"))
    np.testing.assert_array_equal(tensors["hidden_states"], again["hidden_states"])


def test_downloads_leave_no_lease_and_say_their_layout(post, service, tmp_path):
    before = active(service)
    answer = post(headers={"accept": SAFETENSORS}, prompt_token_ids=[[1, 2], [3]])
    tensors = tensors_of(answer)
    assert sorted(tensors) == ["hidden_states.0", "hidden_states.1", "token_ids.0", "token_ids.1"]
    path = tmp_path / "rows"
    path.write_bytes(answer.content)
    with safetensors.safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
    layout = json.loads(metadata["hidden_states"])
    assert (layout["source"], layout["norm"], layout["dtype"]) == ("final", "post", "float32")
    assert metadata["axes"] == "token,hidden"
    assert active(service) == before


def active(service):
    until = time.monotonic() + 5
    while True:
        text = service.http.get("/metrics").text
        [line] = [line for line in text.splitlines() if line.startswith("draftport_leases_active ")]
        count = float(line.split()[1])
        if count == 0 or time.monotonic() > until:
            return count
        time.sleep(0.05)


def test_texts(post, service):
    answer = post(headers={"accept": SAFETENSORS}, prompts=["the quick brown fox", "x"])
    tensors = tensors_of(answer)
    assert tensors["hidden_states.0"].shape[0] == len(tensors["token_ids.0"]) > 1


def test_many_prompts_span_steps_and_slots(leased):
    document = leased([[i % 300] * 500 for i in range(12)])
    assert len({lease["slot"] for lease in document["leases"]}) > 1


@pytest.mark.parametrize(
    ("body", "status", "code", "field"),
    [
        ({"prompt_token_ids": []}, 422, "invalid_request", "prompt_token_ids"),
        ({"prompt_token_ids": [[]]}, 422, "empty_prompt", "prompt_token_ids.0"),
        ({"prompt_token_ids": [[1], []]}, 422, "empty_prompt", "prompt_token_ids.1"),
        ({"prompt_token_ids": [[1], [320]]}, 422, "token_out_of_range", "prompt_token_ids.1"),
        ({"prompt_token_ids": [[-1]]}, 422, "token_out_of_range", "prompt_token_ids.0"),
        ({"prompt_token_ids": [[10**30]]}, 422, "token_out_of_range", "prompt_token_ids.0"),
        ({"prompt_token_ids": [[1] * 2049]}, 422, "prompt_too_long", "prompt_token_ids.0"),
        ({"prompt_token_ids": [[1] * 2048] * 9}, 422, "prompts_exceed_slab", ""),
        ({"prompt_token_ids": [[1.5]]}, 422, "invalid_request", "prompt_token_ids.0.0"),
        ({"prompt_token_ids": [["1"]]}, 422, "invalid_request", "prompt_token_ids.0.0"),
        ({"prompt_token_ids": [[True]]}, 422, "invalid_request", "prompt_token_ids.0.0"),
        ({"prompt_token_ids": [1]}, 422, "invalid_request", "prompt_token_ids.0"),
        ({"prompt_token_ids": [[1]] * 4097}, 422, "invalid_request", "prompt_token_ids"),
        ({"prompts": [""]}, 422, "empty_prompt", "prompts.0"),
        ({"prompts": ["x"], "prompt_token_ids": [[1]]}, 422, "invalid_request", ""),
        ({}, 422, "invalid_request", ""),
        ({"prompt_token_ids": [[1]], "lease_ttl_s": 0}, 422, "invalid_request", "lease_ttl_s"),
        ({"prompt_token_ids": [[1]], "lease_ttl_s": 601}, 422, "invalid_request", "lease_ttl_s"),
        ({"prompt_token_ids": [[1]], "lease_ttl_s": "30"}, 422, "invalid_request", "lease_ttl_s"),
        ({"prompt_token_ids": [[1]], "unknown": 1}, 422, "invalid_request", "unknown"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_run_is_told(post, is_problem, *, body, status, code, field):
    document = is_problem(post(**body), status, code)
    errors = document.get("errors", [{"field": ""}])
    assert any(error["field"].startswith(field) for error in errors), document


def test_a_type_nobody_makes(post, is_problem):
    is_problem(post(headers={"accept": "image/png"}, prompt_token_ids=[[1]]), 406, "not_acceptable")


def test_the_life_of_a_lease(leased, service, is_problem):
    document = leased([[1, 2], [3]], lease_ttl_s=2)
    first, second = (f"{PATH}/leases/{lease['lease_id']}" for lease in document["leases"])
    renewed = service.http.post(f"{first}/renew", json={"lease_ttl_s": 60}).json()
    assert renewed["lease"]["expires_at"] > document["leases"][0]["expires_at"]
    assert service.http.post(f"{first}/renew").status_code == 200
    until = time.monotonic() + 10
    while service.http.get(f"{second}/tensor").status_code == 200:
        assert time.monotonic() < until
        time.sleep(0.1)
    is_problem(service.http.get(f"{second}/tensor"), 410, "lease_expired")
    is_problem(service.http.post(f"{second}/renew", json={}), 410, "lease_expired")
    assert service.http.get(f"{first}/tensor").status_code == 200
    assert service.http.delete(first).status_code == 204
    assert service.http.delete(first).status_code == 204
    is_problem(service.http.get(f"{first}/tensor"), 410, "lease_expired")


@pytest.mark.parametrize("lease_id", ["0" * 32, "x", "..%2F..", "%00"])
@pytest.mark.parametrize(("method", "suffix"), [("GET", "/tensor"), ("POST", "/renew"), ("DELETE", "")])
def test_leases_that_never_were(service, lease_id, method, suffix):
    answer = service.http.request(method, f"{PATH}/leases/{lease_id}{suffix}")
    assert answer.status_code in (404, 405, 422)
    if lease_id == "0" * 32:
        assert answer.json()["code"] == "lease_not_found"


def test_a_lease_taken_elsewhere_can_be_downloaded_by_its_id(service):
    """As readers on other machines do with the ids that vLLM's answers name."""
    from app.reader import Region

    with Region.attach(service.socket_path) as region:
        [lease] = region.forward([[5, 6, 7]])
        path = f"{PATH}/leases/{lease.lease_id}"
        answer = service.http.get(f"{path}/tensor")
        assert answer.status_code == 200
        rows = safetensors.numpy.load(answer.content)
        assert rows["token_ids"].tolist() == [5, 6, 7]
        assert (rows["hidden_states"] == lease.tensor().numpy()).all()
        assert service.http.delete(path).status_code == 204
        lease.check()  # the other's hold is its own affair
        lease.release()


def test_every_slot_leased_is_told_with_a_time_to_come_back(leased, post, is_problem, service):
    target = service.http.get("/v1/target").json()
    rows = target["max_num_batched_tokens"]
    document = leased([[1] * rows] * 8, lease_ttl_s=60)
    assert {lease["slot"] for lease in document["leases"]} == set(range(8))
    answer = post(prompt_token_ids=[[1]])
    is_problem(answer, 503, "slab_full")
    assert int(answer.headers["retry-after"]) >= 1
    ended = document["leases"][3]
    service.http.delete(f"{PATH}/leases/{ended['lease_id']}")
    assert leased([[1]])["leases"][0]["slot"] == ended["slot"]


def test_the_region_is_given_away_only_when_told_to(service, start_service, is_problem):
    region = service.http.get(f"{PATH}/region").json()
    assert (region["kind"], region["raw_handle"], region["format_version"]) == ("memfd", None, 1)
    assert region["slot_bytes"] % (2 << 20) == 0
    assert region["byte_size"] == region["slots"] * region["slot_bytes"]
    closed = start_service().wait_worker()
    is_problem(closed.http.get(f"{PATH}/region"), 403, "region_not_exposed")


def test_one_client_holds_so_many_leases_and_no_more(start_service, is_problem):
    service = start_service(MAX_LEASES_PER_CLIENT=3).wait_worker()
    held = service.http.post(PATH, json={"prompt_token_ids": [[1], [2]]}).json()["leases"]
    refused = service.http.post(PATH, json={"prompt_token_ids": [[1], [2]]})
    is_problem(refused, 429, "overloaded")
    assert "retry-after" in refused.headers
    service.http.delete(f"{PATH}/leases/{held[0]['lease_id']}")
    assert service.http.post(PATH, json={"prompt_token_ids": [[1], [2]]}).status_code == 200


def test_without_a_worker(metadata, is_problem):
    for method, path in (
        ("GET", "/v1/target"), ("POST", PATH), ("GET", f"{PATH}/leases/{'0' * 32}/tensor"),
        ("POST", f"{PATH}/leases/{'0' * 32}/renew"), ("GET", "/readyz/worker"),
    ):  # fmt: skip
        body = {"prompt_token_ids": [[1]]} if path == PATH else None
        answer = metadata.http.request(method, path, json=body)
        is_problem(answer, 501, "worker_disabled")
        assert "retry-after" not in answer.headers
    assert metadata.http.get("/readyz").json()["worker"]["state"] == "disabled"


def test_while_it_loads(start_service, is_problem):
    service = start_service()
    answer = service.http.post(PATH, json={"prompt_token_ids": [[1]]})
    if answer.status_code != 200:
        is_problem(answer, 503, "worker_unavailable")
        assert int(answer.headers["retry-after"]) >= 1
    service.wait_worker()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"TARGET": "/nowhere/model"}, "no directory"),
        ({"AUX_LAYER_IDS": "0,99"}, "99"),
        ({"CAPTURE": "pre_hc_head"}, "hc_mult"),
        ({"SLOTS": 4096, "MAX_NUM_BATCHED_TOKENS": 10**8}, r"slab of \d+ bytes .* \d+ bytes free"),
    ],
)
def test_a_worker_that_cannot_start_says_why_and_metadata_goes_on(
    start_service, is_problem, settings, reason
):
    service = start_service(**settings)
    wait_until(lambda: service.worker_state() == "failed", 60)
    detail = service.http.get("/readyz").json()["worker"]["detail"]
    assert re.search(reason, detail), detail
    assert service.http.get("/readyz").status_code == 200
    is_problem(service.http.get("/readyz/worker"), 503, "worker_unavailable")
    answer = service.http.post(PATH, json={"prompt_token_ids": [[1]]})
    is_problem(answer, 503, "worker_unavailable")
    assert service.http.post("/v1/mask-token", json={"config": {"mask_token_id": 1}}).status_code == 200
    assert service.stop() == 0
