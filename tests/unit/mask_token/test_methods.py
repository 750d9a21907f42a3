"""The family of a drafter, where labels mislead, and what an engine wants to be told."""

import pytest

from app.drafting.engines import EngineRef
from app.drafting.methods import METHODS, detect_method, engine_method, engine_refuses


@pytest.mark.parametrize("kind", METHODS)
def test_a_speculators_type_is_the_method(kind):
    detection = detect_method({"speculators_model_type": kind})
    assert (detection.method, detection.evidence) == (kind, ("speculators_model_type",))


@pytest.mark.parametrize(
    ("config", "method"),
    [
        ({}, None),
        ({"model_type": "qwen3", "mask_token_id": 5}, None),
        ({"architectures": ["Qwen3ForCausalLM"]}, "draft_model"),
        ({"architectures": ["LlamaForCausalLM"], "ptd_token_id": 5}, "peagle"),
        ({"architectures": ["LlamaForCausalLM"], "pard_token": 0}, "pard"),
        ({"architectures": ["LlamaForCausalLM"], "pard_token": None}, "draft_model"),
        ({"architectures": ["Eagle3LlamaForCausalLM"], "pard_token": 5}, "peagle"),
        ({"architectures": ["EagleLlamaForCausalLM"]}, "eagle"),
        ({"architectures": "LlamaForCausalLMEagle3"}, "eagle3"),
        ({"architectures": ["MuseGlimmerAssistantModel"]}, "dflash"),
        (
            {"architectures": ["DFlashDraftModel"], "dspark_markov_rank": 0, "dspark_noise_token_id": None},
            "dflash",
        ),
        ({"architectures": ["DFlashDraftModel"], "mtp_num_hidden_layers": 1}, "dflash"),
        ({"architectures": ["Qwen3DSparkModel"], "enable_confidence_head": False}, "dspark"),
        ({"architectures": ["Qwen3DSparkModel"], "markov_rank": 0}, "dflash"),
        ({"dspark_noise_token_id": 0}, "dspark"),
        ({"dflash_config": {"projector_type": "domino"}, "markov_rank": 4}, "domino"),
        ({"model_type": "mlp_speculator"}, "mlp_speculator"),
        ({"architectures": ["MLPSpeculatorPreTrainedModel"]}, "mlp_speculator"),
        ({"model_type": "medusa"}, "medusa"),
        ({"model_type": "deepseek_mtp"}, "mtp"),
        ({"num_nextn_predict_layers": 0, "architectures": ["DeepseekV3ForCausalLM"]}, "draft_model"),
        ({"num_nextn_predict_layers": True}, None),
        ({"model_type": "ngram"}, "ngram"),
        ({"model_type": "suffix"}, "suffix"),
        ({"model_type": "extract_hidden_states"}, "extract_hidden_states"),
    ],
)
def test_rules(config, method):
    detection = detect_method(config)
    assert detection.method == method
    assert bool(detection.evidence) == (method is not None)


def test_a_label_of_another_family_is_told():
    detection = detect_method({"architectures": ["DFlashDraftModel"], "markov_rank": 256})
    assert (detection.method, detection.evidence) == ("dspark", ("markov_rank",))
    assert detection.contradictions == ("architectures: DFlashDraftModel (dflash)",)


def test_the_dflash2_variant():
    detection = detect_method({"architectures": ["DFlash2DraftModel"], "dflash_config": {"mask_token_id": 1}})
    assert (detection.method, detection.variant) == ("dflash", "dflash2")


def test_0_33_is_told():
    told = {method: engine_method(method) for method in METHODS}
    assert told == {
        "dflash": "dflash",
        "dflash2": "dflash",
        "dspark": "dspark",
        "domino": None,
        "dflare": None,
        "pard": "draft_model",
        "pard2": None,
        "peagle": "eagle3",
        "eagle": "eagle",
        "eagle3": "eagle3",
        "mtp": "mtp",
        "medusa": None,
        "mlp_speculator": None,
        "draft_model": "draft_model",
        "ngram": "ngram",
        "suffix": "suffix",
        "extract_hidden_states": "extract_hidden_states",
    }
    assert engine_method(None) is None


def test_other_engines_and_versions():
    assert engine_method("medusa", EngineRef("vllm", "0.32.0+cpu")) == "medusa"
    assert engine_method("dspark", EngineRef("sglang")) == "DSPARK"
    assert engine_method("dspark", EngineRef("vllm", "0.28.0")) is None


def test_refused_is_not_unknown():
    assert engine_refuses("medusa") is True
    assert engine_refuses("dflash") is False
    assert engine_refuses("dflash", EngineRef("vllm", "0.28.0")) is None
    assert engine_refuses("medusa", EngineRef("sglang")) is None
