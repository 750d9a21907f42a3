"""``/v1/drafting-plan`` and ``/v1/drafting-plans`` over a real socket."""

import json
from pathlib import Path

import pytest
from service import Service

CASES = sorted((Path(__file__).parents[1] / "fixtures" / "cases").glob("*.json"))
TARGET = {"model_type": "qwen3", "hidden_size": 1024, "num_hidden_layers": 28, "vocab_size": 151936}
DRAFT = {
    "architectures": ["DFlashDraftModel"],
    "dflash_config": {"mask_token_id": 151669, "target_layer_ids": [1, 13]},
}
PAIR = {"target": {"config": TARGET}, "draft": {"config": DRAFT}}


@pytest.fixture(scope="module")
def metadata(tmp_path_factory):
    """A service that answers metadata only; models may be named below ``metadata.models``."""
    directory = tmp_path_factory.mktemp("plan")
    models = directory / "models"
    models.mkdir()
    for name, config in (("target", TARGET), ("draft", DRAFT)):
        (models / name).mkdir()
        (models / name / "config.json").write_text(json.dumps(config))
    running = Service(directory, WORKER="off", MODEL_ROOTS=models, LOG_FORMAT="json")
    running.models = models
    yield running
    running.close()


@pytest.fixture
def ask(metadata):
    """``ask(body) -> (status, document)``."""

    def post(body, path="/v1/drafting-plan"):
        answer = metadata.http.post(path, json=body)
        return answer.status_code, answer.json()

    return post


def config_of(case):
    document = json.loads(case.read_text())
    return document.get("config", document)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_every_public_drafter_gets_a_plan(ask, case):
    status, plan = ask({"target": {"config": TARGET}, "draft": {"config": config_of(case)}})
    assert status == 200
    assert plan["ok"] is not any(one["severity"] == "error" for one in plan["findings"])
    assert plan["method"]


def test_the_whole_answer(ask):
    sizes = {
        "num_speculative_tokens": 8,
        "max_num_seqs": 64,
        "max_num_batched_tokens": 8192,
        "dtype": "bfloat16",
    }
    parallel = {"tensor_parallel_size": 4, "pipeline_parallel_size": 2}
    status, plan = ask(
        PAIR | sizes | {"parallel": parallel, "load_config": {"load_format": "fastsafetensors"}}
    )
    assert status == 200
    assert plan["mask_token"]["mask_token_id"] == 151669
    assert plan["load_config"]["draft"]["load_format"] == "auto"
    assert plan["placement"] == {"draft_stage": 1, "draft_ranks": [4, 5, 6, 7], "target_ranks": 8}
    hidden = plan["hidden_states"]
    assert (hidden["source"], hidden["capture_points"], hidden["width"]) == ("aux_layers", [2, 14], 2048)
    assert hidden["buffer_bytes"] == 8192 * 2048 * 2
    assert plan["budget"]["required_rows"] == 64 * plan["budget"]["rows_per_request"]
    assert plan["target"]["config_sha256"] != plan["draft"]["config_sha256"]


def test_problems_of_the_pair_are_findings_of_a_200(ask):
    status, plan = ask({"target": {"config": TARGET}, "draft": {"config": DRAFT | {"dflash_config": {}}}})
    assert (status, plan["ok"]) == (200, False)
    assert plan["mask_token"] == {
        "mask_token_id": None, "source": None, "translated_from": None, "token": None, "candidates": [],
    }  # fmt: skip
    assert plan["findings"][0]["severity"] == "error"
    assert "mask_token_missing" in {one["code"] for one in plan["findings"]}


def test_models_by_name_and_by_command_line(ask, metadata):
    target, draft = str(metadata.models / "target"), str(metadata.models / "draft")
    status, named = ask({"target": {"model": target}, "draft": {"model": draft}, "num_speculative_tokens": 3})
    assert (status, named["target"]["id"], named["draft"]["id"]) == (200, target, draft)
    speculative = json.dumps({"model": draft, "num_speculative_tokens": 3})
    words = ["vllm", "serve", target, "--speculative-config", speculative, "--port", "80"]
    for args in (words, f"vllm serve {target} --speculative-config '{speculative}' --port 80"):
        status, told = ask({"vllm_args": args})
        assert status == 200
        assert told["ignored_vllm_args"] == ["--port"]
        assert {**told, "ignored_vllm_args": []} == named
    status, inline = ask(
        {"vllm_args": "vllm serve org/target", "target": {"config": TARGET}, "method": "ngram"}
    )
    assert (status, inline["method"]) == (200, "ngram")


@pytest.mark.parametrize(
    ("body", "status", "code", "field"),
    [
        ({}, 422, "invalid_request", ""),
        ({"target": {}}, 422, "invalid_request", "target"),
        ({"target": {"config": {}, "model": "a/b"}}, 422, "invalid_request", "target"),
        (PAIR | {"unknown": 1}, 422, "invalid_request", "unknown"),
        (PAIR | {"method": "magic"}, 422, "invalid_request", "method"),
        (PAIR | {"num_speculative_tokens": 0}, 422, "invalid_request", "num_speculative_tokens"),
        (PAIR | {"max_num_seqs": "8"}, 422, "invalid_request", "max_num_seqs"),
        (PAIR | {"load_config": {"load_format": 3}}, 422, "invalid_request", "load_config.load_format"),
        (PAIR | {"draft_load_config": {"x": 3}}, 422, "invalid_request", "draft_load_config.x"),
        (PAIR | {"parallel": {"pipeline_parallel_size": 0}}, 422, "invalid_request",
         "parallel.pipeline_parallel_size"),
        (PAIR | {"engine": "llama.cpp"}, 422, "invalid_request", "engine.name"),
        ({"target": {"model": "org/name"}}, 403, "model_not_allowed", "target.model"),
        ({"target": {"model": "/etc"}}, 403, "model_not_allowed", "target.model"),
        ({"vllm_args": "vllm serve org/name"}, 403, "model_not_allowed", "vllm_args"),
        ({"vllm_args": "vllm serve 'x"}, 422, "vllm_args_invalid", "vllm_args"),
        ({"vllm_args": "rm -rf /"}, 422, "vllm_args_invalid", "vllm_args"),
        ({"vllm_args": "x" * 65536}, 422, "vllm_args_invalid", "vllm_args"),
        ({"vllm_args": "x" * 65537}, 422, "invalid_request", "vllm_args"),
        ({"vllm_args": "vllm serve a --speculative-config " + "'" + "[" * 30000 + "'"}, 422, "vllm_args_invalid",
         "vllm_args"),
        (PAIR | {"vllm_args": "vllm serve a/b -tp 4", "parallel": {"tensor_parallel_size": 2}}, 422,
         "invalid_request", "parallel.tensor_parallel_size"),
        (PAIR | {"vllm_args": ["vllm", 5]}, 422, "invalid_request", "vllm_args"),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_what_is_no_question_is_told_by_field(ask, body, status, code, field):
    given, problem = ask(body)
    assert (given, problem["code"]) == (status, code), problem
    fields = [error["field"] for error in problem["errors"]]
    assert any(one.startswith(field) for one in fields), fields


def test_a_list_answers_each_in_its_order(ask):
    status, answers = ask([PAIR, {"nonsense": 1}, 5, {"target": {"config": TARGET}}], "/v1/drafting-plans")
    assert status == 200
    assert [answer["plan"] is not None for answer in answers] == [True, False, False, True]
    assert [answer["problem"]["code"] for answer in answers if answer["problem"]] == ["invalid_request"] * 2
    assert answers[1]["problem"]["errors"][0]["field"] == "nonsense"
    assert answers[0]["plan"] == ask(PAIR)[1]


@pytest.mark.parametrize("body", [{}, PAIR, [], [PAIR] * 65, "text"])
def test_what_is_no_list_of_questions(ask, body):
    status, problem = ask(body, "/v1/drafting-plans")
    assert (status, problem["code"]) == (422, "invalid_request")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'[{"target": {"config": {"theta": NaN, "theta": Infinity}}}]', 200),
        (b'[{"target": {"config": {}}, "max_num_seqs": NaN}]', 422),
        (b'[{"target": {"config": {}}, "method": "mtp", "method": "eagle"}]', 422),
        (b"[" * 100_000, 400),
    ],
)
def test_odd_json_in_a_list(metadata, body, status):
    headers = {"content-type": "application/json"}
    answer = metadata.http.post("/v1/drafting-plans", content=body, headers=headers)
    assert answer.status_code == status, answer.text
    if status == 200:
        findings = answer.json()[0]["plan"]["findings"]
        assert [one["fields"] for one in findings if "duplicate" in one["code"]] == [["theta"]]
