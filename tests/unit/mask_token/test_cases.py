"""Seventy public drafter configs: the id, the place it stands at, the family, and what a preflight must notice."""

import json
from pathlib import Path

import pytest

from app.drafting.engines import EngineRef
from app.drafting.findings import has_errors
from app.drafting.mask_token import MaskTokenError, MaskTokenInvalidError, MaskTokenMissingError
from app.drafting.mask_token_answer import answer_mask_token
from app.drafting.methods import METHODS, detect_method
from app.drafting.sglang_mask_token import read_as_sglang

CASES = sorted((Path(__file__).parents[2] / "fixtures" / "cases").glob("*.json"))


def load(path):
    case = json.loads(path.read_text(encoding="utf-8"))
    return case["config"], case["expected"]


def named(name):
    [path] = [path for path in CASES if path.stem == name]
    return load(path)


def after_translation(expected):
    return expected.get("after_translation") or expected.get("after_speculators_translation") or expected


@pytest.fixture(params=CASES, ids=lambda path: path.stem)
def case(request):
    return load(request.param)


def test_there_are_seventy():
    assert len(CASES) == 70


def test_the_id_and_its_place(case):
    raw, expected = case
    wanted = after_translation(expected)
    if wanted["mask_token_id"] is None:
        error = MaskTokenMissingError if expected["source"] == "none" else MaskTokenInvalidError
        with pytest.raises(error) as caught:
            answer_mask_token(raw)
        assert caught.value.code == error.code
        assert caught.value.method == expected["method"]
        return
    answer = answer_mask_token(raw)
    assert answer.mask_token_id == wanted["mask_token_id"]
    places = set(expected["source"].split()) | set(wanted["source"].split())
    assert answer.source in places
    assert [found.source for found in answer.candidates if found.used] == [answer.source]
    translated = (
        "speculators" if "after_speculators_translation" in expected else wanted.get("translated_from")
    )
    assert answer.translated_from == translated


def test_the_method(case):
    raw, expected = case
    detection = detect_method(raw)
    assert detection.method == expected["method"]
    assert detection.method in METHODS
    assert detection.evidence


def test_every_other_place_is_a_candidate(case):
    raw, expected = case
    try:
        candidates = answer_mask_token(raw).candidates
    except MaskTokenError as error:
        candidates = error.candidates
    listed = {found.source: found.value for found in candidates}
    for place in expected.get("other_places", []):
        assert listed[place["path"]] == place["value"]


def test_the_range_check(case):
    raw, expected = case
    try:
        codes = {finding.code for finding in answer_mask_token(raw).findings}
    except MaskTokenError:
        return
    outside = codes & {"mask_token_out_of_range", "mask_token_negative"}
    # null means that the file itself can't tell; V4.1's text_config can, once it is flattened.
    assert bool(outside) == (expected["in_vocab"] is False)


def test_the_label_that_contradicts(case):
    raw, expected = case
    mislabelled = {"label_is_dflash", "label_is_dspark"} & set(expected["flags"])
    assert bool(detect_method(raw).contradictions) == bool(mislabelled)


@pytest.mark.parametrize("algorithm", ["DFLASH", "DSPARK"])
def test_what_sglang_reads(case, algorithm):
    raw, expected = case
    wanted = expected["sglang_0_5_reads"][algorithm]
    reading = read_as_sglang(raw, algorithm)
    if "error" in wanted:
        assert reading.outcome == "error"
    elif wanted["value"] is None:
        assert reading.outcome == "tokenizer"
    else:
        assert (reading.outcome, reading.token_id) == ("id", wanted["value"])


def test_the_pad_placeholder_is_seen_with_the_target():
    raw, _ = named("dspark-torchspec-glm-5.2-pad-placeholder")
    target, _ = named("mtp-glm-5-dsa")
    alone = {finding.code for finding in answer_mask_token(raw).findings}
    assert not alone & {"mask_token_equals_pad", "mask_token_equals_eos"}
    answer = answer_mask_token(raw, target=target)
    fields = {finding.code: finding.fields for finding in answer.findings if finding.severity == "warning"}
    assert fields["mask_token_equals_pad"] == ("target.pad_token_id",)
    assert fields["mask_token_equals_eos"] == ("target.eos_token_id",)
    assert not has_errors(answer.findings)


def test_an_ordinary_token_in_range_is_not_claimed_to_be_wrong():
    raw, _ = named("pard-recipe-llama-ids-on-qwen-base")
    assert answer_mask_token(raw).findings == ()


def test_agreeing_copies_are_no_finding():
    raw, _ = named("dflash-nvidia-nemotron-3.5-lightning-30b")
    answer = answer_mask_token(raw)
    assert [(found.source, found.value, found.used) for found in answer.candidates] == [
        ("dflash_config.mask_token_id", 990, True),
        ("mask_token_id", 990, False),
        ("pard_token", 990, False),
    ]
    assert answer.findings == ()


def test_disagreeing_copies_are():
    raw, _ = named("synthetic-disagreeing-keys")
    [finding] = answer_mask_token(raw).findings
    assert finding.code == "mask_token_candidates_disagree"
    assert finding.fields == ("dflash_config.mask_token_id", "mask_token_id", "pard_token")


def test_a_section_that_the_order_does_not_read():
    raw, _ = named("dflare-angelslim-native")
    with pytest.raises(MaskTokenMissingError) as caught:
        answer_mask_token(raw)
    [candidate] = caught.value.candidates
    assert (candidate.source, candidate.value, candidate.used) == ("dflare_config.mask_token_id", 4, False)


def test_dflash2_keeps_its_label_and_gets_a_note():
    raw, _ = named("dflash2-zlab-qwen3.8-27b")
    answer = answer_mask_token(raw)
    assert (answer.method, answer.engine_method) == ("dflash", "dflash")
    assert [finding.code for finding in answer.findings] == ["dflash2_variant"]
    assert answer.engine == EngineRef("vllm", "0.33.0")
