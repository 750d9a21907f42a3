"""From the raw file to the config that vLLM builds."""

import copy
import json

import pytest

from app.drafting.mask_token import (
    MaskTokenInvalidError,
    MaskTokenMissingError,
    get_parallel_drafting_token_id,
)
from app.drafting.mask_token_answer import answer_mask_token
from app.drafting.normalize import normalize, normalize_drafter_config

LAYER = {"model_type": "llama", "hidden_size": 64, "vocab_size": 200}


def speculators(kind, **fields):
    return {
        "speculators_model_type": kind,
        "speculators_config": {"algorithm": kind, "proposal_methods": []},
        "transformer_layer_config": dict(LAYER),
        **fields,
    }


def test_peagle_moves_the_id_to_pard_token():
    raw = speculators("peagle", mask_token_id=128, draft_vocab_size=32)
    assert normalize_drafter_config(raw) == {**LAYER, "pard_token": 128, "draft_vocab_size": 32}
    answer = answer_mask_token(raw)
    assert (answer.mask_token_id, answer.source) == (128, "mask_token_id")
    assert (answer.translated_from, answer.method, answer.engine_method) == (
        "speculators",
        "peagle",
        "eagle3",
    )


@pytest.mark.parametrize("kind", ["dflash", "dflash2"])
def test_dflash_moves_the_id_into_its_section(kind):
    raw = speculators(kind, mask_token_id=128, aux_hidden_state_layer_ids=[2, 10])
    built = normalize_drafter_config(raw)
    assert built["dflash_config"] == {"mask_token_id": 128, "target_layer_ids": [1, 9]}
    assert built["eagle_aux_hidden_state_layer_ids"] == [2, 10]
    answer = answer_mask_token(raw)
    assert (answer.source, answer.method, answer.engine_method) == ("mask_token_id", kind, "dflash")


def test_the_files_own_section_is_not_what_vllm_builds():
    raw = speculators("dflash", mask_token_id=128, dflash_config={"mask_token_id": 5})
    answer = answer_mask_token(raw)
    assert answer.mask_token_id == 128
    assert [(found.source, found.used) for found in answer.candidates] == [
        ("mask_token_id", True),
        ("dflash_config.mask_token_id", False),
    ]


def test_eagle3_drops_the_top_level_id():
    raw = speculators("eagle3", mask_token_id=128)
    with pytest.raises(MaskTokenMissingError) as caught:
        answer_mask_token(raw)
    assert [(found.source, found.used) for found in caught.value.candidates] == [("mask_token_id", False)]


@pytest.mark.parametrize("key", ["mask_token_id", "dspark_noise_token_id", "pard_token", "ptd_token_id"])
def test_eagle3_reads_one_in_the_layer_config(key):
    raw = speculators("eagle3", mask_token_id=5)
    raw["transformer_layer_config"][key] = 128
    answer = answer_mask_token(raw)
    assert (answer.mask_token_id, answer.source) == (128, f"transformer_layer_config.{key}")
    assert [found.source for found in answer.candidates] == [
        f"transformer_layer_config.{key}",
        "mask_token_id",
    ]


@pytest.mark.parametrize("kind", ["peagle", "dflash", "dflash2"])
@pytest.mark.parametrize("fields", [{}, {"mask_token_id": None}])
def test_missing_and_null_are_null(kind, fields):
    raw = speculators(kind, **fields)
    with pytest.raises(MaskTokenInvalidError):
        get_parallel_drafting_token_id(normalize_drafter_config(raw))
    with pytest.raises(MaskTokenInvalidError, match=r"mask_token_id is (missing|null)") as caught:
        answer_mask_token(raw)
    assert caught.value.key == "mask_token_id"
    assert "mask_token_null_skipped" not in {finding.code for finding in caught.value.findings}


@pytest.mark.parametrize("fields", [{}, {"mask_token_id": None}])
def test_dspark_skips_a_null(fields):
    with pytest.raises(MaskTokenMissingError):
        answer_mask_token(speculators("dspark", **fields))


def test_peagle_reads_the_layer_configs_id_first():
    raw = speculators("peagle", mask_token_id=128)
    raw["transformer_layer_config"]["mask_token_id"] = 7
    assert answer_mask_token(raw).source == "transformer_layer_config.mask_token_id"


@pytest.mark.parametrize(
    "kind", ["mtp", "xpress", "pard2", "dflare", "EAGLE3", ["eagle3"], {"a": 1}, None, 7]
)
def test_other_types_are_read_as_they_stand_with_a_finding(kind):
    raw = speculators(kind, mask_token_id=128)
    assert normalize_drafter_config(raw) == raw
    answer = answer_mask_token(raw)
    assert (answer.mask_token_id, answer.source, answer.translated_from) == (128, "mask_token_id", None)
    [finding] = [found for found in answer.findings if found.code == "speculators_type_unregistered"]
    assert finding.severity == "error"


def test_without_speculators_config_a_model_type_decides():
    raw = speculators("eagle3", mask_token_id=128, speculators_config=None)
    assert normalize(raw).translated_from == "speculators"
    assert normalize(raw | {"model_type": "speculator_model"}).translated_from == "speculators"
    # vLLM builds such a file from its model_type and never looks at the speculators keys.
    assert normalize(raw | {"model_type": "llama"}).translated_from is None
    assert normalize(raw | {"model_type": "llama", "speculators_config": {}}).translated_from == "speculators"


def test_v41_flattens_its_text_config():
    raw = {
        "model_type": "deepseek_v41",
        "text_config": {"model_type": "inner", "pard_token": 5, "vocab_size": 9},
    }
    assert normalize_drafter_config(raw) == {**raw, "pard_token": 5, "vocab_size": 9}
    answer = answer_mask_token(raw)
    assert (answer.mask_token_id, answer.source, answer.translated_from) == (
        5,
        "text_config.pard_token",
        "text_config",
    )


def test_the_top_level_wins():
    raw = {"model_type": "deepseek_v41", "pard_token": 6, "text_config": {"pard_token": 5, "ptd_token_id": 5}}
    assert answer_mask_token(raw).source == "pard_token"
    null = {"model_type": "deepseek_v41", "mask_token_id": None, "text_config": {"mask_token_id": 5}}
    with pytest.raises(MaskTokenMissingError) as caught:
        answer_mask_token(null)
    assert "mask_token_null_skipped" in {finding.code for finding in caught.value.findings}


def test_a_nested_section_is_named_in_full():
    raw = {"model_type": "deepseek_v41", "text_config": {"dflash_config": {"mask_token_id": 5}}}
    assert answer_mask_token(raw).source == "text_config.dflash_config.mask_token_id"


@pytest.mark.parametrize("text_config", [None, [], "mask_token_id", 5, True])
def test_a_text_config_that_is_no_object_stays(text_config):
    raw = {"model_type": "deepseek_v41", "text_config": text_config, "mask_token_id": 4}
    assert normalize_drafter_config(raw) == raw


def test_other_text_configs_are_not_looked_into():
    raw = {"model_type": "qwen3_5", "text_config": {"mask_token_id": 5}}
    with pytest.raises(MaskTokenMissingError) as caught:
        answer_mask_token(raw)
    assert [found.source for found in caught.value.candidates] == ["text_config.mask_token_id"]


@pytest.mark.parametrize("kind", ["eagle3", "peagle", "dflash", "dspark", "mtp"])
def test_the_input_is_left_alone(kind):
    raw = speculators(kind, mask_token_id=1, aux_hidden_state_layer_ids=[1, 2])
    before = copy.deepcopy(raw)
    built = normalize_drafter_config(raw)
    built["mask_token_id"] = "changed"
    built.get("dflash_config", {}).clear()
    assert json.dumps(raw) == json.dumps(before)
