"""vLLM's own code as the judge: mask ids, capture points and methods of the public configs.

Runs where ``vllm`` can be imported, and says so where it can't. The judge builds each config as vllm does for a draft
(no code from repositories); configs that it cannot build (no or unknown ``model_type``) have no verdict.
"""

import importlib
import json
import types

import pytest

pytest.importorskip(
    "vllm", reason="vllm is not installed here; the same cases run against recorded expectations"
)

from app.drafting.plan import drafting_plan
from app.drafting.plan_request import PlanRequest

# vLLM's names -> the family's own; the rest are equal.
_FAMILIES = {"dflash2": "dflash", "peagle": "eagle3", "pard": "draft_model"}


@pytest.fixture(scope="module")
def judge():
    config = importlib.import_module("vllm.transformers_utils.config")
    speculative = importlib.import_module("vllm.config.speculative")
    utils = importlib.import_module("vllm.v1.worker.gpu.spec_decode.utils")
    taps = importlib.import_module("vllm.v1.worker.gpu.spec_decode.eagle.eagle3_utils")
    return config.get_config, speculative.SpeculativeConfig.hf_config_override, utils, taps


@pytest.fixture
def built(case, judge, tmp_path):
    get_config, override, _, _ = judge
    raw = {key: value for key, value in case["config"].items() if key != "auto_map"}
    (tmp_path / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    try:
        return get_config(str(tmp_path), trust_remote_code=False, hf_overrides_fn=override)
    except Exception as error:  # noqa: BLE001  # whatever the judge raises, it gives no verdict
        pytest.skip(f"vllm builds no config of it: {type(error).__name__}")


def test_the_mask_id_is_what_vllm_reads(case, judge, built):
    _, _, utils, _ = judge
    plan = drafting_plan(PlanRequest(draft_config=case["config"]))
    if plan.mask_token is None:
        pytest.skip("the method needs no mask token id")
    try:
        expected = utils.get_parallel_drafting_token_id(built)
    except (TypeError, ValueError):
        expected = None
    assert plan.mask_token.mask_token_id == expected


def test_the_capture_points_are_what_vllm_captures(case, judge, built):
    _, _, _, taps = judge
    lookup = next(
        (
            getattr(taps, name)
            for name in dir(taps)
            if "aux" in name and "config" in name and name.startswith("get")
        ),
        None,
    )
    if lookup is None:
        pytest.skip("this vllm keeps the look-up under another name")
    hidden = drafting_plan(PlanRequest(draft_config=case["config"])).hidden_states
    if hidden is None or hidden.capture_points is None:
        pytest.skip("no capture points are claimed")
    draft = types.SimpleNamespace(draft_model_config=types.SimpleNamespace(hf_config=built))
    found = lookup(draft)
    assert found is None or tuple(found) == tuple(hidden.capture_points)


def test_the_method_is_one_that_vllm_knows(case, built):
    speculative = importlib.import_module("vllm.config.speculative")
    plan = drafting_plan(PlanRequest(draft_config=case["config"]))
    known = json.dumps(str(speculative.SpeculativeMethod))
    if plan.engine_method is not None:
        assert plan.engine_method in known
        assert plan.engine_method == _FAMILIES.get(plan.method, plan.method)
