"""Whatever JSON a config holds, there is an answer or one of the two errors."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.drafting.engines import EngineRef
from app.drafting.mask_token import (
    MaskTokenInvalidError,
    MaskTokenMissingError,
    get_parallel_drafting_token_id,
)
from app.drafting.mask_token_answer import answer_mask_token
from app.drafting.normalize import normalize_drafter_config

WORDS = st.sampled_from(
    ["mask_token_id", "eagle3", "peagle", "dflash", "dflash2", "dspark", "mtp", "pard2", "domino", "pard", "qwen3",
     "deepseek_v41", "DFlash2DraftModel", "Qwen3DSparkModel", "LlamaForCausalLMEagle3", "", "1", "-1", "\ud800"]
)  # fmt: skip
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 300), st.integers(), st.floats(), WORDS, st.just(10**400)
)
KEYS = st.sampled_from(
    ["mask_token_id", "dspark_noise_token_id", "pard_token", "ptd_token_id", "vocab_size", "eos_token_id",
     "pad_token_id", "bos_token_id", "dflash_config", "dspark_config", "text_config", "projector_type", "markov_rank",
     "enable_confidence_head", "model_type", "architectures", "target_layer_ids", "mtp", "x"]
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=8,
)
FIELDS = (
    "mask_token_id", "dspark_noise_token_id", "pard_token", "ptd_token_id", "dflash_config",
    "dspark_config", "dflare_config", "text_config", "transformer_layer_config", "vocab_size",
    "eos_token_id", "pad_token_id", "architectures", "num_nextn_predict_layers", "mtp_config", "spd_type",
    "parallel_drafting", "markov_rank", "aux_hidden_state_layer_ids", "target_layer_ids",
    "dspark_markov_rank", "eagle_config",
)  # fmt: skip
CONFIGS = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(FIELDS, VALUES)
    | {
        "model_type": st.just("deepseek_v41") | VALUES,
        "speculators_config": st.just({}) | VALUES,
        "speculators_model_type": WORDS | VALUES,
    },
)
ENGINES = st.sampled_from(
    [None, *(EngineRef("vllm", v) for v in ("0.16.2", "0.27.1", "odd")), EngineRef("sglang")]
)


def look_up(raw, path):
    for part in path.split("."):
        raw = raw[part]
    return raw


def check_candidates(raw, candidates):
    assert sum(found.used for found in candidates) <= 1
    assert len({found.source for found in candidates}) == len(candidates)
    for found in candidates:
        assert look_up(raw, found.source) is found.value


@settings(max_examples=500, deadline=None)
@given(CONFIGS, st.none() | CONFIGS, ENGINES)
def test_an_answer_or_one_of_two_errors(raw, target, engine):
    shape = repr_keys(raw)
    try:
        answer = answer_mask_token(raw, target=target, engine=engine, token_text=str)
    except (MaskTokenMissingError, MaskTokenInvalidError) as error:
        check_candidates(raw, error.candidates)
        with pytest.raises(type(error)):
            get_parallel_drafting_token_id(normalize_drafter_config(raw))
    else:
        check_candidates(raw, answer.candidates)
        assert answer.mask_token_id == get_parallel_drafting_token_id(normalize_drafter_config(raw))
        assert int(look_up(raw, answer.source)) == answer.mask_token_id
        assert [found.source for found in answer.candidates if found.used] == [answer.source]
        assert all(len(finding.detail) < 1500 for finding in answer.findings)
    assert repr_keys(raw) == shape


def repr_keys(value):
    """The shape and identities of a document: equal before and after when nothing was changed."""
    if isinstance(value, dict):
        return {key: repr_keys(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [repr_keys(inner) for inner in value]
    return id(value)


def test_deep_nesting_is_not_walked():
    deep = value = {}
    for _ in range(50_000):
        value["text_config"] = value = {}
    with pytest.raises(MaskTokenMissingError):
        answer_mask_token({"text_config": deep, "dflash_config": deep, "eagle_config": [deep]})


def test_huge_values_are_not_echoed():
    answer = answer_mask_token(
        {"mask_token_id": "0" * 4000 + "5", "pard_token": "x" * 10**6}, duplicate_keys=["k" * 999]
    )
    assert answer.mask_token_id == 5
    assert sum(len(finding.detail) for finding in answer.findings) < 3000


def test_non_string_keys_are_no_trouble():
    assert answer_mask_token({1: 2, None: 3, "pard_token": 4}).mask_token_id == 4


def test_integers_that_python_will_not_print():
    answer = answer_mask_token({"mask_token_id": 10**5000, "pard_token": -(10**5000), "vocab_size": 9})
    assert answer.mask_token_id == 10**5000
    assert {"mask_token_out_of_range", "mask_token_candidates_disagree"} <= {f.code for f in answer.findings}
