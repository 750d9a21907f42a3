"""vLLM's load config: fields, types, bounds; and the fallback on several pipeline stages."""

import dataclasses
import subprocess
import sys
from collections import namedtuple
from types import SimpleNamespace
from typing import Any

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.drafting.load_config import (
    LoadConfig,
    LoadConfigError,
    get_pp_safe_draft_load_config,
    parse_load_config,
)

DEFAULTS = {
    "load_format": "auto",
    "download_dir": None,
    "safetensors_load_strategy": None,
    "safetensors_prefetch_num_threads": 8,
    "safetensors_prefetch_block_size": 16 * 1024 * 1024,
    "model_loader_extra_config": {},
    "device": None,
    "ignore_patterns": ["original/**/*"],
    "use_tqdm_on_load": True,
    "pt_load_map_location": "cpu",
}


def test_defaults():
    assert msgspec.to_builtins(parse_load_config({})) == DEFAULTS


def test_defaults_are_not_shared():
    parse_load_config({}).model_loader_extra_config["x"] = 1
    assert parse_load_config({}) == LoadConfig()


@pytest.mark.parametrize(
    ("given_name", "name"),
    [
        ("FastSafeTensors", "fastsafetensors"),
        (" fastsafetensors", " fastsafetensors"),
        ("fast-safetensors ", "fast-safetensors "),
        ("GGUF", "gguf"),
        ("", ""),
    ],
)
def test_names_are_lower_cased_and_not_stripped(given_name, name):
    assert parse_load_config({"load_format": given_name}).load_format == name
    assert LoadConfig(load_format=given_name).load_format == name


@pytest.mark.parametrize(
    "fields",
    [
        {"download_dir": "/models", "device": "cuda"},
        {"safetensors_load_strategy": "prefetch", "safetensors_prefetch_num_threads": 1},
        {"model_loader_extra_config": {"distributed": True, "nested": {"a": [None]}}},
        {"ignore_patterns": "*.bin"},
        {"ignore_patterns": []},
        {"pt_load_map_location": {"cuda:0": "cuda:1"}, "use_tqdm_on_load": False},
    ],
)
def test_fields_are_kept(fields):
    assert msgspec.to_builtins(parse_load_config(fields)) == DEFAULTS | fields


@pytest.mark.parametrize(
    ("field", "value", "path", "code"),
    [
        ("load_format", None, "load_format", "invalid_type"),
        ("load_format", 5, "load_format", "invalid_type"),
        ("load_format", True, "load_format", "invalid_type"),
        ("load_format", ["auto"], "load_format", "invalid_type"),
        ("download_dir", 1, "download_dir", "invalid_type"),
        ("safetensors_load_strategy", "fast", "safetensors_load_strategy", "invalid_type"),
        ("safetensors_prefetch_num_threads", 0, "safetensors_prefetch_num_threads", "out_of_range"),
        ("safetensors_prefetch_num_threads", True, "safetensors_prefetch_num_threads", "invalid_type"),
        ("safetensors_prefetch_num_threads", "8", "safetensors_prefetch_num_threads", "invalid_type"),
        ("safetensors_prefetch_block_size", -1, "safetensors_prefetch_block_size", "out_of_range"),
        ("safetensors_prefetch_block_size", 1.5, "safetensors_prefetch_block_size", "invalid_type"),
        ("safetensors_prefetch_block_size", None, "safetensors_prefetch_block_size", "invalid_type"),
        ("model_loader_extra_config", None, "model_loader_extra_config", "invalid_type"),
        ("model_loader_extra_config", [], "model_loader_extra_config", "invalid_type"),
        ("ignore_patterns", ["a", 1], "ignore_patterns[1]", "invalid_type"),
        ("use_tqdm_on_load", 1, "use_tqdm_on_load", "invalid_type"),
        ("pt_load_map_location", {"a": 1}, "pt_load_map_location[...]", "invalid_type"),
        ("Load_Format", "auto", "Load_Format", "unknown_field"),
        ("nope", 1, "nope", "unknown_field"),
    ],
)
def test_what_does_not_fit_is_named(field, value, path, code):
    with pytest.raises(LoadConfigError) as caught:
        parse_load_config({field: value}, at="draft_load_config")
    assert caught.value.code == "invalid_request"
    assert caught.value.field == f"draft_load_config.{path}"
    assert [error.code for error in caught.value.errors] == [code]
    assert caught.value.detail


def test_everything_that_does_not_fit_is_named_at_once():
    with pytest.raises(LoadConfigError) as caught:
        parse_load_config({"device": 1, "x": 1, "use_tqdm_on_load": None, "load_format": "auto"})
    assert [error.field.split(".")[1] for error in caught.value.errors] == ["device", "x", "use_tqdm_on_load"]


@pytest.mark.parametrize("value", [None, [], "auto", 5])
def test_no_object(value):
    with pytest.raises(LoadConfigError) as caught:
        parse_load_config(value)
    assert caught.value.field == "load_config"


@given(st.dictionaries(st.sampled_from([*DEFAULTS, "x"]) | st.text(), st.recursive(st.none() | st.booleans() | st.integers()
       | st.floats() | st.text(), lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2))))  # fmt: skip
def test_anything_else_is_an_error(fields):
    try:
        parsed = parse_load_config(fields)
    except LoadConfigError:
        return
    assert set(fields) <= set(DEFAULTS)
    assert min(parsed.safetensors_prefetch_num_threads, parsed.safetensors_prefetch_block_size) >= 1


@pytest.mark.parametrize(
    ("load_format", "stages", "safe"),
    [
        ("fastsafetensors", 1, "fastsafetensors"),
        ("fastsafetensors", 2, "auto"),
        ("fastsafetensors", 64, "auto"),
        ("FASTSAFETENSORS", 2, "auto"),
        (" fastsafetensors", 2, " fastsafetensors"),
        ("auto", 2, "auto"),
        ("safetensors", 4, "safetensors"),
        ("instanttensor", 4, "instanttensor"),
        ("runai_streamer", 4, "runai_streamer"),
        ("bogus", 2, "bogus"),
        ("", 2, ""),
    ],
)
def test_the_guard(load_format, stages, safe):
    config = LoadConfig(load_format=load_format, device="cuda", model_loader_extra_config={"a": [1]})
    before = msgspec.to_builtins(config)
    result = get_pp_safe_draft_load_config(config, stages)
    assert msgspec.to_builtins(result) == before | {"load_format": safe}
    assert msgspec.to_builtins(config) == before
    assert (result is config) == (safe == before["load_format"])


@dataclasses.dataclass(frozen=True)
class AsDataclass:
    load_format: Any
    other: int = 3


class AsModel(pydantic.BaseModel):
    load_format: Any
    other: int = 3


class AsObject:
    def __init__(self, load_format):
        self.load_format = load_format
        self.other = 3


AsTuple = namedtuple("AsTuple", "load_format other", defaults=(3,))  # noqa: PYI024  # an untyped one is meant


@pytest.mark.parametrize(
    "kind", [AsDataclass, lambda load_format: AsModel(load_format=load_format), AsObject, AsTuple]
)
def test_any_object_with_a_load_format(kind):
    config = kind("fastsafetensors")
    result = get_pp_safe_draft_load_config(config, 2)
    assert type(result) is type(config)
    assert (result.load_format, result.other) == ("auto", 3)
    assert config.load_format == "fastsafetensors"
    assert get_pp_safe_draft_load_config(config, 1) is config
    # Set after construction, vLLM does not lower-case, and its comparison is exact.
    for odd in ("FASTSAFETENSORS", 7, None, ["fastsafetensors"]):
        config = kind(odd)
        assert get_pp_safe_draft_load_config(config, 2) is config


def test_a_namespace():
    config = SimpleNamespace(load_format="fastsafetensors", extra={})
    result = get_pp_safe_draft_load_config(config, 2)
    assert (result.load_format, config.load_format) == ("auto", "fastsafetensors")
    assert result.extra is config.extra


@pytest.mark.parametrize("size", [0, -1, True, False, 2.0, "2", None, [2]])
def test_a_size_that_is_none(size):
    with pytest.raises(LoadConfigError) as caught:
        get_pp_safe_draft_load_config(LoadConfig(), size)
    assert caught.value.field == "pipeline_parallel_size"


def test_one_warning_per_process():
    code = """
from threading import Thread
from app.drafting.load_config import LoadConfig, get_pp_safe_draft_load_config as safe
config = LoadConfig(load_format="fastsafetensors")
safe(config, 1), safe(LoadConfig(), 8)
print("none yet", flush=True)
threads = [Thread(target=safe, args=(config, 2 + n)) for n in range(8)]
[thread.start() for thread in threads], [thread.join() for thread in threads]
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    [warning] = ran.stderr.strip().splitlines()
    assert "fastsafetensors" in warning
