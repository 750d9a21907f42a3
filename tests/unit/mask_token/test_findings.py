"""What an answer about a mask token id warns of, and what it does not claim."""

import pytest

from app.drafting.engines import EngineRef
from app.drafting.mask_token import MaskTokenInvalidError, MaskTokenMissingError
from app.drafting.mask_token_answer import answer_mask_token


def findings(config, **options):
    return {finding.code: finding for finding in answer_mask_token(config, **options).findings}


def dflash(token_id, **fields):
    return {"dflash_config": {"mask_token_id": token_id}, "vocab_size": 1000, **fields}


def test_a_sound_config_has_no_finding():
    assert findings(dflash(999)) == {}
    assert (
        findings(dflash(999), target={"vocab_size": 1000, "eos_token_id": [1, 2], "pad_token_id": None}) == {}
    )


@pytest.mark.parametrize("token_id", [-1, -(2**70)])
def test_negative(token_id):
    found = findings(dflash(token_id))
    assert found["mask_token_negative"].severity == "error"
    assert "mask_token_out_of_range" not in found


@pytest.mark.parametrize(
    ("config", "target", "fields"),
    [
        (dflash(1000), None, ("vocab_size",)),
        (dflash(2**70), None, ("vocab_size",)),
        (dflash(10), {"vocab_size": 10}, ("target.vocab_size",)),
        (
            dflash(10),
            {"vocab_size": "10", "text_config": {"vocab_size": 10}},
            ("target.text_config.vocab_size",),
        ),
        (dflash(1000), {"vocab_size": 0}, ("vocab_size",)),
        (
            {"mask_token_id": 6, "transformer_layer_config": {"vocab_size": 6}},
            None,
            ("transformer_layer_config.vocab_size",),
        ),
    ],
)
def test_out_of_range(config, target, fields):
    finding = findings(config, target=target)["mask_token_out_of_range"]
    assert finding.severity == "error"
    assert finding.fields[1:] == fields


def test_the_targets_vocabulary_counts_when_it_is_given():
    assert findings(dflash(1000), target={"vocab_size": 2000}) == {}


@pytest.mark.parametrize("vocab_size", [None, "1000", 1000.0, True, 0, -5, [], {}])
def test_an_unknown_vocabulary_is_said_to_be_unknown(vocab_size):
    finding = findings(dflash(5, vocab_size=vocab_size))["vocab_size_unknown"]
    assert finding.severity == "info"


@pytest.mark.parametrize("name", ["eos", "pad", "bos"])
def test_special_tokens(name):
    key = f"{name}_token_id"
    assert findings(dflash(7, **{key: 7}))[f"mask_token_equals_{name}"].severity == "warning"
    assert findings(dflash(7, **{key: [3, 7]}))[f"mask_token_equals_{name}"].fields == (key,)
    both = findings(dflash(7, **{key: 7}), target={"text_config": {key: 7}})[f"mask_token_equals_{name}"]
    assert both.fields == (key, f"target.text_config.{key}")
    for other in (8, [8], None, "7", 7.0, {"7": 7}):
        assert f"mask_token_equals_{name}" not in findings(dflash(7, **{key: other}))
    assert f"mask_token_equals_{name}" not in findings(dflash(1, **{key: True}))


@pytest.mark.parametrize(
    ("value", "token_id", "code"),
    [
        ("151", 151, "mask_token_not_integer"),
        (151.0, 151, "mask_token_not_integer"),
        (True, 1, "mask_token_not_integer"),
        (151.9, 151, "mask_token_truncated"),
        (-0.5, 0, "mask_token_truncated"),
    ],
)
def test_values_that_int_converts(value, token_id, code):
    answer = answer_mask_token(dflash(value))
    assert answer.mask_token_id == token_id
    codes = [finding.code for finding in answer.findings if finding.severity == "warning"]
    assert codes == [code, "engine_dependent_mask_token"]


def test_candidates_that_disagree():
    config = dflash(
        5, mask_token_id="5", pard_token=6, dspark_config={"mask_token_id": "x"}, ptd_token_id=None
    )
    found = findings(config)["mask_token_candidates_disagree"]
    assert found.fields == ("dflash_config.mask_token_id", "pard_token", "dspark_config.mask_token_id")


def test_sglang_reads_another_place():
    config = dflash(5, dspark_noise_token_id=6, markov_rank=256)
    answer = answer_mask_token(config)
    assert (answer.method, answer.mask_token_id) == ("dspark", 5)
    [finding] = [found for found in answer.findings if found.code == "engine_dependent_mask_token"]
    assert finding.severity == "warning"
    assert "5; SGLang (DSPARK) reads 6" in finding.detail
    [finding] = [
        f for f in answer_mask_token(config, engine=EngineRef("sglang")).findings if "SGLang (" in f.detail
    ]
    assert finding.severity == "error"


def test_sglang_asks_the_tokenizer_where_vllm_fails():
    with pytest.raises(MaskTokenInvalidError) as caught:
        answer_mask_token({"dflash_config": {"mask_token_id": None}})
    [finding] = caught.value.findings
    assert finding.code == "engine_dependent_mask_token"
    assert "tokenizer" in finding.detail


@pytest.mark.parametrize(
    ("version", "config", "severity"),
    [
        ("0.33.0", {"pard_token": 5}, None),
        ("0.32.0+cpu", {"mask_token_id": 5}, None),
        ("0.16.0", {"pard_token": 5}, None),
        ("0.16.3", {"mask_token_id": 5}, "error"),
        ("0.16.0", {"mask_token_id": 5, "pard_token": 6}, "error"),
        ("0.16.0", {"mask_token_id": 5, "pard_token": None, "ptd_token_id": 5}, "error"),
    ],
)
def test_the_order_of_a_version(version, config, severity):
    found = findings(config, engine=EngineRef("vllm", version))
    got = found.get("version_dependent_mask_token")
    assert (got.severity if got else None) == severity
    assert "mask_token_order_unknown" not in found


@pytest.mark.parametrize("version", ["0.15.0", "0.27.1", "0.32.1", "0.34.0", "nightly"])
def test_versions_between_and_beyond_are_unknown(version):
    answer = answer_mask_token({"pard_token": 5}, engine=EngineRef("vllm", version))
    assert answer.engine == EngineRef("vllm", version)
    assert answer.engine_method is None
    assert "mask_token_order_unknown" in {finding.code for finding in answer.findings}


def test_duplicate_keys():
    finding = findings(dflash(5), duplicate_keys=["a", "b", "a"])["duplicate_keys"]
    assert (finding.severity, finding.fields) == ("warning", ("a", "b"))


def test_null_that_is_skipped():
    assert findings({"mask_token_id": None, "pard_token": 5})["mask_token_null_skipped"].severity == "info"
    assert "mask_token_null_skipped" not in findings(dflash(5, mask_token_id=None))


@pytest.mark.parametrize(
    "config", [{"num_nextn_predict_layers": 1}, {"architectures": ["LlamaForCausalLMEagle3"]}]
)
def test_families_that_need_none(config):
    with pytest.raises(MaskTokenMissingError) as caught:
        answer_mask_token(config)
    assert [finding.code for finding in caught.value.findings] == ["mask_token_not_needed"]


def test_token_text():
    assert answer_mask_token(dflash(5), token_text=lambda token_id: f"<{token_id}>").token == "<5>"
    assert answer_mask_token(dflash(5), token_text=lambda _: None).token is None
    for outside in (-1, 2**31, 10**30):
        assert answer_mask_token(dflash(outside), token_text=lambda _: 1 / 0).token is None


def test_missing_still_tells_what_is_there():
    with pytest.raises(MaskTokenMissingError) as caught:
        answer_mask_token(
            {"text_config": {"dspark_config": {"mask_token_id": 3}}, "dflare_config": {"pard_token": 4}}
        )
    assert [(found.source, found.value) for found in caught.value.candidates] == [
        ("dflare_config.pard_token", 4),
        ("text_config.dspark_config.mask_token_id", 3),
    ]
