"""With which load config a draft is loaded: two steps, the reason, and where an engine version differs."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.drafting.engines import EngineRef
from app.drafting.load_config import LoadConfig, LoadConfigError
from app.drafting.load_config_answer import answer_load_config
from app.drafting.methods import METHODS

FAST = LoadConfig(load_format="fastsafetensors", device="cuda")
CACHE = LoadConfig(load_format="ipc_cache", model_loader_extra_config={"socket": "x"})


def vllm(version):
    return EngineRef("vllm", version)


def codes(answer):
    return {finding.code: finding.severity for finding in answer.findings}


def test_several_stages():
    answer = answer_load_config(FAST, 2, method="dspark")
    assert answer.target is FAST
    assert answer.draft == LoadConfig(load_format="auto", device="cuda")
    assert (answer.changed, answer.reason) == (("load_format",), "pp_collective_loader")
    assert (answer.engine, answer.engine_draft_load_format) == (vllm("0.33.0"), "auto")
    assert answer.findings == ()


def test_one_stage():
    answer = answer_load_config(FAST, 1, method="dspark")
    assert answer.draft is FAST
    assert (answer.changed, answer.reason, answer.findings) == ((), None, ())
    assert answer.engine_draft_load_format == "fastsafetensors"


def test_the_drafts_own_config_is_what_changes_are_counted_from():
    safe = LoadConfig(load_format="safetensors")
    answer = answer_load_config(FAST, 2, draft_load_config=safe, method="dflash")
    assert answer.draft is safe
    assert (answer.changed, answer.reason, answer.engine_draft_load_format) == ((), None, "safetensors")


def test_the_drafts_own_config_is_guarded_too():
    answer = answer_load_config(LoadConfig(), 2, draft_load_config=FAST, method="eagle3")
    assert (answer.draft.load_format, answer.draft.device) == ("auto", "cuda")
    assert (answer.changed, answer.reason) == (("load_format",), "pp_collective_loader")


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("method", ["eagle", "eagle3", "mtp"])
def test_drafts_that_share_a_cached_target(method, stages):
    answer = answer_load_config(CACHE, stages, method=method)
    assert answer.draft.load_format == "ipc_cache"
    assert answer.draft.model_loader_extra_config == {"socket": "x", "is_draft": True}
    assert (answer.changed, answer.reason) == (("model_loader_extra_config",), "ipc_cache_draft")
    assert answer.engine_draft_load_format == "ipc_cache"
    assert CACHE.model_loader_extra_config == {"socket": "x"}


@pytest.mark.parametrize("method", [m for m in METHODS if m not in {"eagle", "eagle3", "mtp"}] + [None])
def test_other_drafts_of_a_cached_target(method):
    answer = answer_load_config(CACHE, 2, method=method)
    assert answer.draft == LoadConfig(load_format="auto")
    assert (answer.changed, answer.reason) == (
        ("load_format", "model_loader_extra_config"),
        "ipc_cache_draft",
    )
    assert ("ipc_cache_method_unknown" in codes(answer)) == (method is None)


def test_nothing_changed_has_no_reason():
    already = msgspec.structs.replace(CACHE, model_loader_extra_config={"is_draft": True})
    answer = answer_load_config(already, 2, method="mtp")
    assert (answer.changed, answer.reason) == ((), None)


def test_a_drafts_own_ipc_cache_is_left_alone():
    answer = answer_load_config(FAST, 2, draft_load_config=CACHE, method="dflash")
    assert answer.draft is CACHE
    assert answer.reason is None


def test_p_eagle_is_told_to_vllm_as_eagle3():
    answer = answer_load_config(CACHE, 1, method="peagle")
    assert (answer.draft.load_format, answer.engine_draft_load_format) == ("auto", "ipc_cache")
    assert codes(answer) == {"ipc_cache_told_as_eagle3": "info"}


@pytest.mark.parametrize(
    ("method", "engine_format", "found"),
    [
        ("eagle", "auto", {}),
        ("eagle3", "auto", {}),
        ("dflash", "auto", {}),
        ("dflash2", "auto", {}),
        ("draft_model", "fastsafetensors", {"method_unguarded": "warning"}),
        ("pard", "fastsafetensors", {"method_unguarded": "warning"}),
        ("peagle", "fastsafetensors", {"method_unguarded": "warning"}),
        ("mtp", None, {"method_unguarded": "info"}),
        ("ngram", None, {}),
        ("domino", None, {}),
        (None, None, {}),
    ],
)
def test_code_paths_that_skip_the_guard(method, engine_format, found):
    answer = answer_load_config(FAST, 2, method=method)
    assert answer.draft.load_format == "auto"
    assert (answer.engine_draft_load_format, codes(answer)) == (engine_format, found)


def test_a_config_tells_which_mtp():
    gemma = answer_load_config(FAST, 2, method="mtp", draft_config={"architectures": ["Gemma4MTPModel"]})
    assert (gemma.engine_draft_load_format, codes(gemma)) == (
        "fastsafetensors",
        {"method_unguarded": "warning"},
    )
    other = answer_load_config(FAST, 2, method="mtp", draft_config={"model_type": "deepseek_v3"})
    assert (other.engine_draft_load_format, codes(other)) == ("auto", {})


@pytest.mark.parametrize("config", [LoadConfig(), LoadConfig(load_format="safetensors")])
@pytest.mark.parametrize("method", [None, "dflash", "draft_model", "mtp", "peagle"])
def test_formats_that_every_path_agrees_on(config, method):
    answer = answer_load_config(config, 4, method=method)
    assert (answer.engine_draft_load_format, answer.findings) == (config.load_format, ())


@pytest.mark.parametrize(
    ("version", "engine_format", "found"),
    [
        ("0.26.0", "fastsafetensors", {"pp_guard_missing": "error"}),
        ("0.19.1", "fastsafetensors", {"pp_guard_missing": "error"}),
        ("0.27.1", None, {"pp_guard_unknown": "warning"}),
        ("0.31.0", None, {"pp_guard_unknown": "warning"}),
        ("0.34.0", None, {"pp_guard_unknown": "warning"}),
        ("0.32.0+cpu", "auto", {}),
    ],
)
def test_versions(version, engine_format, found):
    answer = answer_load_config(FAST, 2, method="dspark", engine=vllm(version))
    assert (answer.draft.load_format, answer.reason) == ("auto", "pp_collective_loader")
    assert (answer.engine_draft_load_format, codes(answer)) == (engine_format, found)
    alone = answer_load_config(FAST, 1, method="dspark", engine=vllm(version))
    assert (alone.engine_draft_load_format, alone.findings) == ("fastsafetensors", ())


def test_sglang_has_no_guard():
    answer = answer_load_config(FAST, 2, method="eagle", engine=EngineRef("sglang"))
    assert (answer.engine_draft_load_format, codes(answer)) == (None, {"pp_guard_missing": "error"})


def test_draft_load_config_that_is_ignored():
    safe = LoadConfig(load_format="safetensors")
    answer = answer_load_config(FAST, 2, draft_load_config=safe, method="draft_model")
    assert (answer.draft, answer.changed, answer.engine_draft_load_format) == (safe, (), "fastsafetensors")
    assert codes(answer) == {"draft_load_config_ignored": "warning", "method_unguarded": "warning"}
    unsure = answer_load_config(FAST, 2, draft_load_config=safe, method="draft_model", engine=vllm("0.32.0"))
    assert unsure.engine_draft_load_format is None
    old = answer_load_config(LoadConfig(), 1, draft_load_config=safe, method="dflash", engine=vllm("0.20.0"))
    assert (old.engine_draft_load_format, codes(old)) == (None, {"draft_load_config_unknown": "warning"})


@pytest.mark.parametrize(
    ("config", "warned"),
    [
        (LoadConfig(load_format="instanttensor"), True),
        (LoadConfig(load_format="runai_streamer", model_loader_extra_config={"distributed": True}), True),
        (LoadConfig(load_format="runai_streamer", model_loader_extra_config={"distributed": "true"}), False),
        (LoadConfig(load_format="runai_streamer"), False),
    ],
)
def test_other_collective_loaders(config, warned):
    answer = answer_load_config(config, 2, method="dflash")
    assert (answer.draft, answer.reason) == (config, None)
    found = [finding for finding in answer.findings if finding.code == "collective_loader_unguarded"]
    assert [finding.severity for finding in found] == ["warning"] * warned
    assert [finding.evidence for finding in found] == ["inferred"] * warned
    assert answer_load_config(config, 1, method="dflash").findings == ()


@pytest.mark.parametrize("load_format", [" fastsafetensors", "fast-safetensors", "bogus", "", "gguf"])
def test_names_that_nobody_registered(load_format):
    config = LoadConfig(load_format=load_format)
    answer = answer_load_config(config, 2, method="dflash")
    assert answer.draft is config
    assert codes(answer) == {"load_format_unregistered": "warning"}
    own = answer_load_config(LoadConfig(), 2, draft_load_config=config, method="dflash")
    assert [finding.fields for finding in own.findings] == [("draft_load_config.load_format",)]


def test_former_formats_in_versions_that_nobody_looked_at():
    assert answer_load_config(LoadConfig(load_format="gguf"), 1, engine=vllm("0.20.0")).findings == ()
    assert codes(answer_load_config(LoadConfig(load_format="x"), 1, engine=vllm("0.20.0"))) == {
        "load_format_unregistered": "warning"
    }


@pytest.mark.parametrize("size", [0, True, "2", None])
def test_a_size_that_is_none(size):
    with pytest.raises(LoadConfigError):
        answer_load_config(FAST, size)


FORMATS = st.sampled_from(
    [
        "auto",
        "fastsafetensors",
        "FASTSAFETENSORS",
        "ipc_cache",
        "instanttensor",
        "runai_streamer",
        "safetensors",
        "x",
    ]
)
CONFIGS = st.builds(
    LoadConfig,
    load_format=FORMATS,
    device=st.sampled_from([None, "cuda"]),
    model_loader_extra_config=st.dictionaries(st.sampled_from(["distributed", "is_draft"]), st.booleans()),
)


@given(
    CONFIGS,
    st.integers(1, 4),
    st.none() | CONFIGS,
    st.sampled_from([None, *METHODS]),
    st.sampled_from([None, *map(vllm, ("0.20.0", "0.28.0", "0.32.0", "0.33.0", "odd")), EngineRef("sglang")]),
)
def test_what_always_holds(target, stages, own, method, engine):
    before = msgspec.to_builtins([target, own])
    answer = answer_load_config(target, stages, draft_load_config=own, method=method, engine=engine)
    given_config = own or target
    assert msgspec.to_builtins([target, own]) == before
    different = [
        name
        for name, value in msgspec.to_builtins(answer.draft).items()
        if value != msgspec.to_builtins(given_config)[name]
    ]
    assert list(answer.changed) == different
    assert (answer.reason is None) == (not different)
    assert not (stages > 1 and answer.draft.load_format == "fastsafetensors")
    assert answer.target is target
    # The answer itself does not depend on the engine, only what is said about it does.
    assert answer.draft == answer_load_config(target, stages, draft_load_config=own, method=method).draft
