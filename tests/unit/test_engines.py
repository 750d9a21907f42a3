"""Engines by name, and a table that says unknown where nobody looked."""

import pytest

from app.drafting import engines
from app.drafting.engines import (
    NEWEST_VLLM,
    EngineError,
    EngineRef,
    behaviour,
    engine_or_newest,
    parse_engine,
)


@pytest.mark.parametrize(
    ("value", "name", "version"),
    [
        ("vllm", "vllm", None),
        ("vllm==0.27.1", "vllm", "0.27.1"),
        (" VLLM == 0.27.1 ", "vllm", "0.27.1"),
        ("sglang==nightly-2026", "sglang", "nightly-2026"),
        ({"name": "vllm"}, "vllm", None),
        ({"name": "vllm", "version": None}, "vllm", None),
        ({"name": "SGLang", "version": "0.5.23"}, "sglang", "0.5.23"),
        (EngineRef("vllm", "1!2.0+cpu"), "vllm", "1!2.0+cpu"),
    ],
)
def test_parse(value, name, version):
    assert parse_engine(value) == EngineRef(name, version)


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ("", "engine.name"),
        ("==1", "engine.name"),
        ("tgi", "engine.name"),
        ("vllm>=0.3", "engine.name"),
        ("vllm==", "engine.version"),
        ("vllm==1 2", "engine.version"),
        ("vllm==" + "1" * 65, "engine.version"),
        ({}, "engine.name"),
        ({"name": 3}, "engine.name"),
        ({"name": ["vllm"]}, "engine.name"),
        ({"name": "vllm", "version": 0.27}, "engine.version"),
        ({"name": "vllm", "commit": "x"}, "engine.commit"),
        (None, "engine"),
        (3, "engine"),
        (["vllm"], "engine"),
    ],
)
def test_junk(value, field):
    with pytest.raises(EngineError) as caught:
        parse_engine(value)
    assert (caught.value.field, caught.value.code) == (field, "invalid_request")
    assert caught.value.detail


def test_the_newest_is_the_default():
    assert engine_or_newest(None) == engine_or_newest(EngineRef("vllm")) == EngineRef("vllm", NEWEST_VLLM)
    assert engine_or_newest(EngineRef("vllm", "0.1")) == EngineRef("vllm", "0.1")


@pytest.mark.parametrize(
    ("version", "guard"),
    [
        ("0.10.2", "absent"),
        ("0.26.0", "absent"),
        ("0.26.0rc1", "absent"),
        ("0.26.1", None),
        ("0.27.0", None),
        ("0.31.5", None),
        ("0.32.0", "present"),
        ("0.32.0+cpu", "present"),
        ("0.32.1", None),
        ("0.33", "present"),
        ("0.33.0rc1", None),
        ("0.34.0", None),
        ("main", None),
    ],
)
def test_the_pp_guard(version, guard):
    known = behaviour(EngineRef("vllm", version)).pp_guard
    assert (known.value if known else None) == guard


def test_every_row_has_a_source():
    tables = [
        value for value in vars(engines).values() if isinstance(value, tuple) and value and _is_table(value)
    ]
    assert len(tables) == 6
    assert all(row.source for table in tables for row in table)


def _is_table(value):
    return all(isinstance(row, engines.Row) for row in value)
