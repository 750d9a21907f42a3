"""``/v1/mask-token`` and ``/v1/load-config``, GET and POST, against what the domain says."""

import functools
import json
from pathlib import Path

import pytest
from service import wait_until

from app.drafting.mask_token import MaskTokenError
from app.drafting.mask_token_answer import answer_mask_token

CASES = sorted((Path(__file__).parents[1] / "fixtures" / "cases").glob("*.json"))


def config_of(case):
    document = json.loads(case.read_text())
    return document.get("config", document)


def expected_of(config):
    try:
        return answer_mask_token(config)
    except MaskTokenError as error:
        return error


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_every_public_drafter_is_answered_as_the_domain_does(metadata, case):
    config = config_of(case)
    answer = metadata.http.post("/v1/mask-token", json={"config": config})
    document = answer.json()
    expected = expected_of(config)
    if isinstance(expected, MaskTokenError):
        assert (answer.status_code, document["code"]) == (422, expected.code)
        assert len(document["candidates"]) == len(expected.candidates)
        return
    assert answer.status_code == 200
    for name in ("mask_token_id", "source", "translated_from", "method", "engine_method"):
        assert document[name] == getattr(expected, name)
    assert [one["code"] for one in document["findings"]] == [one.code for one in expected.findings]


def test_get_and_post_of_a_directory_agree(metadata):
    got = metadata.http.get("/v1/mask-token", params={"model": metadata.drafter})
    posted = metadata.http.post("/v1/mask-token", json={"model": metadata.drafter})
    assert got.json() == posted.json()
    assert got.json()["mask_token_id"] == 7
    assert got.json()["model"]["id"] == metadata.drafter


def test_a_target_checks_the_id(metadata):
    asked = {"model": metadata.drafter, "target": {"config": {"model_type": "qwen3", "vocab_size": 5}}}
    findings = metadata.http.post("/v1/mask-token", json=asked).json()["findings"]
    assert "error" in {one["severity"] for one in findings}
    asked["target"]["config"]["vocab_size"] = 100
    findings = metadata.http.post("/v1/mask-token", json=asked).json()["findings"]
    assert "error" not in {one["severity"] for one in findings}


def test_the_engine_is_echoed_or_named(metadata):
    named = metadata.http.get("/v1/mask-token", params={"model": metadata.drafter, "engine": "vllm==0.32.0"})
    assert named.json()["engine"] == {"name": "vllm", "version": "0.32.0"}
    newest = metadata.http.get("/version").json()["newest_known_engines"]["vllm"]
    default = metadata.http.get("/v1/mask-token", params={"model": metadata.drafter}).json()
    assert default["engine"] == {"name": "vllm", "version": newest}


@pytest.mark.parametrize(
    "path",
    [
        "/v1/mask-token?model={model}",
        "/v1/load-config?load_format=auto&pipeline_parallel_size=2&model={model}",
    ],
)
def test_gets_are_conditional(metadata, path):
    path = path.format(model=metadata.drafter)
    first = metadata.http.get(path)
    tag = first.headers["etag"]
    assert tag.startswith('"')
    assert first.headers["cache-control"] == "no-cache"
    for value in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        again = metadata.http.get(path, headers={"if-none-match": value})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    assert metadata.http.get(path, headers={"if-none-match": '"other"'}).status_code == 200


def test_the_tag_changes_with_the_file(metadata):
    path = metadata.models / "changing"
    path.mkdir()
    tags = set()

    def tag_of(model, mask_token_id):  # a directory is looked at anew every two seconds
        answer = metadata.http.get("/v1/mask-token", params={"model": model})
        return answer.headers["etag"] if answer.json()["mask_token_id"] == mask_token_id else None

    for mask_token_id in (1, 2):
        (path / "config.json").write_text(json.dumps({"mask_token_id": mask_token_id}))
        tags.add(wait_until(functools.partial(tag_of, str(path), mask_token_id), 10))
    assert len(tags) == 2


@pytest.mark.parametrize(
    ("config", "code"),
    [
        ({}, "mask_token_missing"),
        ({"mask_token_id": None}, "mask_token_missing"),
        ({"pard_token": None}, "mask_token_invalid"),
        ({"dflash_config": {"mask_token_id": None}, "mask_token_id": 5}, "mask_token_invalid"),
        ({"ptd_token_id": "five"}, "mask_token_invalid"),
    ],
)
def test_no_usable_id_lists_the_candidates(metadata, is_problem, config, code):
    document = is_problem(metadata.http.post("/v1/mask-token", json={"config": config}), 422, code)
    assert isinstance(document["candidates"], list)
    if code == "mask_token_invalid":
        assert document["candidates"]


def test_load_config_in_both_ways(metadata):
    query = {"load_format": "fastsafetensors", "pipeline_parallel_size": 2, "engine": "vllm==0.33.0"}
    got = metadata.http.get("/v1/load-config", params=query).json()
    asked = {
        "load_config": {"load_format": "fastsafetensors"}, "pipeline_parallel_size": 2,
        "engine": {"name": "vllm", "version": "0.33.0"},
    }  # fmt: skip
    assert metadata.http.post("/v1/load-config", json=asked).json() == got
    assert (got["reason"], got["changed"]) == ("pp_collective_loader", ["load_format"])
    assert got["target"] | {"load_format": "auto"} == got["draft"]


@pytest.mark.parametrize(
    ("asked", "draft", "reason"),
    [
        ({"load_config": {"load_format": "FastSafeTensors"}, "pipeline_parallel_size": 1}, "fastsafetensors", None),
        ({"load_config": {"load_format": "auto"}, "pipeline_parallel_size": 8}, "auto", None),
        ({"load_config": {"load_format": " fastsafetensors"}, "pipeline_parallel_size": 2}, " fastsafetensors", None),
        ({"load_config": {"load_format": "auto"}, "draft_load_config": {"load_format": "fastsafetensors"},
          "pipeline_parallel_size": 2}, "auto", "pp_collective_loader"),
        ({"load_config": {"load_format": "ipc_cache"}, "pipeline_parallel_size": 1, "method": "eagle3"},
         "ipc_cache", "ipc_cache_draft"),
        ({"load_config": {"load_format": "ipc_cache"}, "pipeline_parallel_size": 1, "method": "dflash"},
         "auto", "ipc_cache_draft"),
    ],
)  # fmt: skip
def test_which_load_config_the_draft_gets(metadata, asked, draft, reason):
    answer = metadata.http.post("/v1/load-config", json=asked).json()
    assert (answer["draft"]["load_format"], answer["reason"]) == (draft, reason)


def test_the_draft_model_tells_the_method(metadata):
    query = {"load_format": "ipc_cache", "pipeline_parallel_size": 1, "model": metadata.drafter}
    answer = metadata.http.get("/v1/load-config", params=query).json()
    assert (answer["method"], answer["draft"]["load_format"]) == ("dflash", "auto")
