"""What the plan's tests share: the public drafter configs, and pairs that are sound until a test spoils them."""

import json
from pathlib import Path

import msgspec
import pytest

from app.drafting.engines import EngineRef
from app.drafting.plan import drafting_plan
from app.drafting.plan_request import PlanRequest

CASES = {
    path.stem: json.loads(path.read_text(encoding="utf-8"))
    for path in sorted((Path(__file__).parents[2] / "fixtures" / "cases").glob("*.json"))
}


@pytest.fixture(scope="session")
def cases():
    return CASES


@pytest.fixture(params=CASES, ids=str)
def case(request):
    return CASES[request.param]


@pytest.fixture
def config_of():
    """``config_of(name, **changes)``: a public config, changed; a change to ``...`` removes the key."""

    def get(name, **changes):
        config = json.loads(json.dumps(CASES[name]["config"]))
        for key, value in changes.items():
            config.pop(key, None)
            if value is not ...:
                config[key] = value
        return config

    return get


@pytest.fixture
def target_of():
    """A target's config; by default Qwen3-8B's numbers, which the SpecForge DFlash drafter was made for."""

    def make(**changes):
        config = {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "hidden_size": 4096,
            "num_hidden_layers": 36,
            "vocab_size": 151936,
            "dtype": "bfloat16",
            "eos_token_id": 151645,
            "pad_token_id": 151643,
        }
        return config | changes

    return make


@pytest.fixture
def sound(config_of, target_of):
    """``sound(**changes)``: the request of a pair without errors and warnings, changed."""

    def make(**changes):
        request = PlanRequest(
            target_config=target_of(),
            draft_config=config_of("dflash-specforge-qwen3-8b-dflash"),
            num_speculative_tokens=15,
            max_num_batched_tokens=8192,
            max_num_seqs=64,
            engine=EngineRef("vllm", "0.33.0"),
            trained_mask_token_id=151669,
        )
        return msgspec.structs.replace(request, **changes)

    return make


@pytest.fixture
def codes():
    """``codes(request) -> {code: finding}``."""

    def plan(request):
        return {finding.code: finding for finding in drafting_plan(request).findings}

    return plan
