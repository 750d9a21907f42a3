"""``get_parallel_drafting_token_id`` against a second statement of the rule, written from its description."""

import math
import re
from collections import UserDict
from types import SimpleNamespace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.drafting.mask_token import (
    MaskTokenInvalidError,
    MaskTokenMissingError,
    get_parallel_drafting_token_id,
)

KEYS = ("mask_token_id", "dspark_noise_token_id", "pard_token", "ptd_token_id")
DIGITS = re.compile(r"\s*[+-]?\d(?:_?\d)*\s*")


def claims(document):
    """Every value that may decide, in order; ``Ellipsis`` stands for a section that can't be looked into."""
    section = document.get("dflash_config")
    if section:
        if isinstance(section, dict):
            if "mask_token_id" in section:
                yield section["mask_token_id"]
        elif not isinstance(section, (list, str)) or "mask_token_id" in section:
            yield ...
    if document.get("mask_token_id") is not None:
        yield document["mask_token_id"]
    yield from (document[key] for key in KEYS[1:] if key in document)


def verdict(document):
    return next((converted(value) for value in claims(document)), "missing")


def converted(value):
    """What an integer conversion gives, written out by type."""
    if isinstance(value, (bool, int)):
        return value + 0
    if isinstance(value, float) and math.isfinite(value):
        return math.trunc(value)
    if isinstance(value, str) and DIGITS.fullmatch(value):
        digits = "".join(str(int(char)) for char in value if char.isdigit())
        if len(digits) <= 4300:  # int() refuses longer texts
            return -int(digits) if "-" in value else int(digits)
    return "invalid"


def outcome(hf_config):
    try:
        return get_parallel_drafting_token_id(hf_config)
    except MaskTokenMissingError:
        return "missing"
    except MaskTokenInvalidError:
        return "invalid"


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 300_000),
    st.integers(),
    st.floats(),
    st.text("0123456789_+-. \t\n٣eEx", max_size=8),
    st.integers(0, 200_000).map(str),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=1),
)
sections = st.one_of(
    scalars,
    st.fixed_dictionaries({}, optional={"mask_token_id": scalars, "target_layer_ids": scalars}),
    st.lists(st.sampled_from(["mask_token_id", "x"]), max_size=2),
    st.sampled_from(["mask_token_id", "a mask_token_id inside", "", "x"]),
)
documents = st.fixed_dictionaries(
    {},
    optional={
        "dflash_config": sections,
        "model_type": scalars,
        "vocab_size": scalars,
        **dict.fromkeys(KEYS, scalars),
    },
)


@settings(max_examples=4000, deadline=None)
@given(documents)
@example({})
@example({"dflash_config": {"mask_token_id": None}, "mask_token_id": 7})
@example({"mask_token_id": None, "pard_token": 7})
@example({"dspark_noise_token_id": None, "pard_token": 7})
@example({"pard_token": None, "ptd_token_id": 7})
@example({"dflash_config": ["mask_token_id"], "mask_token_id": 7})
@example({"dflash_config": [0], "mask_token_id": 7})
@example({"dflash_config": "mask_token_id", "mask_token_id": 7})
@example({"dflash_config": 5, "mask_token_id": 7})
@example({"dflash_config": True, "mask_token_id": 7})
@example({"dflash_config": 0, "mask_token_id": 7})
@example({"mask_token_id": "1" * 5000})
@example({"mask_token_id": float("nan")})
@example({"mask_token_id": float("-inf")})
@example({"mask_token_id": 10**60})
@example({"mask_token_id": 1e300})
def test_it_is_the_described_order(document):
    expected = verdict(document)
    assert outcome(document) == expected
    assert outcome(SimpleNamespace(**document)) == expected
    assert outcome(UserDict(document)) == expected


@settings(max_examples=500, deadline=None)
@given(scalars)
def test_it_converts_as_int_does(value):
    try:
        expected = int(value)
    except (TypeError, ValueError, OverflowError):
        expected = "invalid"
    assert outcome({"pard_token": value}) == expected


def test_the_result_is_a_plain_int():
    assert type(get_parallel_drafting_token_id({"pard_token": True})) is int
    assert get_parallel_drafting_token_id({"pard_token": 1.9}) == 1
    assert get_parallel_drafting_token_id({"pard_token": " 1_000 "}) == 1000
    assert get_parallel_drafting_token_id({"pard_token": -1}) == -1


def test_missing_names_the_five_keys():
    with pytest.raises(
        ValueError, match=r"dflash_config\.mask_token_id, mask_token_id, dspark_noise_token_id"
    ) as caught:
        get_parallel_drafting_token_id(SimpleNamespace())
    assert "pard_token, ptd_token_id" in caught.value.detail
    assert caught.value.code == "mask_token_missing"


@pytest.mark.parametrize(
    ("document", "key", "json_type"),
    [
        ({"dflash_config": {"mask_token_id": None}}, "dflash_config.mask_token_id", "null"),
        ({"dflash_config": {"mask_token_id": []}}, "dflash_config.mask_token_id", "an array"),
        ({"dflash_config": 3}, "dflash_config", "an integer"),
        ({"dflash_config": ["mask_token_id"]}, "dflash_config", "an array"),
        ({"mask_token_id": {"id": 5}}, "mask_token_id", "an object"),
        ({"dspark_noise_token_id": "mask"}, "dspark_noise_token_id", "a string"),
        ({"pard_token": math.inf}, "pard_token", "a number"),
        ({"ptd_token_id": None}, "ptd_token_id", "null"),
    ],
)
def test_invalid_names_the_key_and_the_type(document, key, json_type):
    with pytest.raises(ValueError, match=re.escape(key)) as caught:
        get_parallel_drafting_token_id(document)
    assert caught.value.code == "mask_token_invalid"
    assert caught.value.key == key
    assert json_type in caught.value.detail
    assert caught.value.__cause__ is None


def test_transformers_configs_are_read_by_attribute():
    transformers = pytest.importorskip("transformers")
    config = transformers.PretrainedConfig(dflash_config={"mask_token_id": 151669}, mask_token_id=7)
    assert get_parallel_drafting_token_id(config) == 151669
    assert (
        get_parallel_drafting_token_id(transformers.PretrainedConfig(mask_token_id=None, pard_token=9)) == 9
    )
    with pytest.raises(MaskTokenMissingError):
        get_parallel_drafting_token_id(transformers.PretrainedConfig(text_config={"mask_token_id": 5}))
