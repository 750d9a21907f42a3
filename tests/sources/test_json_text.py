from __future__ import annotations

import hashlib
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.sources import SourceError, config_sha256_of, parse_config, parse_json_body

_scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text()
_values = st.recursive(
    _scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=25
)
_configs = st.dictionaries(st.text(), _values)


def _code(text: bytes, **limits) -> str:
    with pytest.raises(SourceError) as caught:
        parse_config(text, **limits)
    return caught.value.code


def _outcome(parse, text: bytes):
    """What came of it, or the code of the error."""
    try:
        return parse(text)
    except SourceError as error:
        return error.code


@given(_configs, st.booleans())
def test_parses_what_json_writes(config, ascii_only) -> None:
    text = json.dumps(config, ensure_ascii=ascii_only).encode()
    parsed = parse_config(text, max_depth=64)
    assert parsed.config == json.loads(json.dumps(config))
    assert parsed.sha256 == hashlib.sha256(text).hexdigest()
    assert parsed.duplicate_keys == ()
    assert parsed.byte_size == len(text)


@given(st.binary(max_size=200))
def test_any_bytes_end_in_an_object_or_in_config_invalid(text) -> None:
    outcome = _outcome(parse_config, text)
    assert outcome == "config_invalid" or isinstance(outcome.config, dict)


@given(st.text(alphabet='{}[]",:\\ud8eE0.1-NaIfinty ', max_size=60))
def test_near_json_ends_in_a_value_or_in_malformed_json(text) -> None:
    outcome = _outcome(parse_json_body, text.encode())
    # Everything that is let through can be written again.
    assert outcome == "malformed_json" or json.dumps(outcome.value, ensure_ascii=False).encode()


def _nonfinite_paths(value, path=()) -> list[str]:
    if isinstance(value, dict):
        return [p for key, item in value.items() for p in _nonfinite_paths(item, (*path, key))]
    if isinstance(value, list):
        return [p for index, item in enumerate(value) for p in _nonfinite_paths(item, (*path, str(index)))]
    odd = isinstance(value, float) and not math.isfinite(value)
    return [".".join(path)] if odd else []


_names = st.sampled_from("abcd")
_odd_numbers = st.sampled_from([math.nan, math.inf, -math.inf, 1.5, 3])


@given(
    st.recursive(_odd_numbers, lambda inner: st.lists(inner) | st.dictionaries(_names, inner), max_leaves=10)
)
def test_every_nonfinite_number_is_found(value) -> None:
    parsed = parse_json_body(json.dumps(value).encode())
    assert list(parsed.nonfinite_paths) == sorted(_nonfinite_paths(value))


def test_nonfinite_numbers_are_accepted_in_configs() -> None:
    config = parse_config(b'{"a": NaN, "b": [Infinity, -Infinity]}').config
    assert math.isnan(config["a"])
    assert config["b"] == [math.inf, -math.inf]


def test_a_number_beyond_floats_is_reported_as_nonfinite() -> None:
    assert parse_json_body(b'{"a": {"b": [1, 1e999]}}').nonfinite_paths == ("a.b.1",)
    assert parse_json_body(b"1e999").nonfinite_paths == ("",)


def test_duplicate_keys_last_wins_and_their_paths_are_reported() -> None:
    parsed = parse_config(b'{"a": 1, "x": [{"m": 1, "m": 2, "m": 3}], "a": 2, "t": {"k": 1, "k": null}}')
    assert parsed.config == {"a": 2, "x": [{"m": 3}], "t": {"k": None}}
    assert parsed.duplicate_keys == ("a", "t.k", "x.0.m")


def test_a_repeated_key_inside_a_dropped_value_is_not_reported() -> None:
    assert parse_config(b'{"a": {"b": 1, "b": 2}, "a": 0}').duplicate_keys == ("a",)


def test_reported_paths_are_bounded() -> None:
    keys = ",".join(f'"{"k" * 500}{index}": 0' for index in range(300))
    duplicates = parse_config(f"{{{keys},{keys}}}".encode()).duplicate_keys
    assert len(duplicates) == 64
    assert max(map(len, duplicates)) <= 200


@pytest.mark.parametrize(
    "text", [b"[]", b"3", b'"a"', b"null", b"", b"{", b"{}x", b"{'a': 1}", b"\x00", b"nan"]
)
def test_no_object(text) -> None:
    assert _code(text) == "config_invalid"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b"\xef\xbb\xbf{}", id="byte order mark"),
        pytest.param("{}".encode("utf-16"), id="utf-16"),
        pytest.param(b'{"a": "\xff"}', id="not utf-8"),
        pytest.param(b'{"a": "\xed\xa0\x80"}', id="encoded surrogate"),
        pytest.param(b'{"a": "\\ud800"}', id="lone surrogate in a value"),
        pytest.param(b'{"\\uDFFF": 1}', id="lone surrogate in a key"),
        pytest.param(b'{"a": [["\\ude00\\ud83d"]]}', id="surrogates the wrong way round"),
        pytest.param(b'{"a": ' + b"9" * 200 + b"}", id="long integer"),
        pytest.param(b'{"a": 0.' + b"9" * 200 + b"}", id="long float"),
        pytest.param(b'{"a": ' + b"9" * 5_000_000 + b"}", id="very long integer"),
    ],
)
def test_refused_texts(text) -> None:
    assert _code(text) == "config_invalid"


def test_surrogate_pairs_are_characters() -> None:
    assert parse_config(b'{"a": "\\ud83d\\ude00"}').config == {"a": "\U0001f600"}


@pytest.mark.parametrize("levels", [64, 65, 500, 100_000])
@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_depth(levels, opening, closing) -> None:
    text = b'{"a":' + opening * (levels - 1) + b"1" + closing * (levels - 1) + b"}"
    if levels <= 64:
        assert parse_config(text, max_depth=64).config
    else:
        assert _code(text, max_depth=64) == "config_invalid"


def test_wide_is_not_deep() -> None:
    assert parse_config(b'{"a": [' + b",".join([b"[[1]]"] * 1000) + b"]}", max_depth=4)


def test_unclosed_depth_ends_in_an_error() -> None:
    assert _code(b'{"a":' * 500_000) == "config_invalid"


def test_size_and_number_of_elements_are_bounded() -> None:
    assert _code(b'{"a": "' + b"x" * 100 + b'"}', max_bytes=100) == "config_invalid"
    assert _code(b'{"a": [' + b"[]," * 1_000_000 + b"0]}") == "config_invalid"


def test_bodies_may_be_any_json() -> None:
    assert parse_json_body(b"[1, 2]").value == [1, 2]
    with pytest.raises(SourceError) as caught:
        parse_json_body(b"[" * 100_000)
    assert caught.value.code == "malformed_json"
    assert caught.value.status == 400


def test_the_place_of_a_syntax_error_is_told_and_no_content() -> None:
    with pytest.raises(SourceError) as caught:
        parse_config(b'{"a": 1,\n "secret" 2}')
    assert "line 2, column 11" in caught.value.detail
    assert "secret" not in caught.value.detail


@given(_configs)
def test_the_hash_of_an_inline_config_does_not_depend_on_key_order(config) -> None:
    backwards = dict(reversed(config.items()))
    assert config_sha256_of(backwards) == config_sha256_of(config)


def test_the_hash_of_an_inline_config_is_that_of_its_canonical_json() -> None:
    text = '{"a":[1,2.5,null],"é":NaN}'.encode()
    assert config_sha256_of({"é": math.nan, "a": [1, 2.5, None]}) == hashlib.sha256(text).hexdigest()
