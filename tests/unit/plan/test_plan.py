"""Whole plans: public configs, pairs that people run, and the shape of the answer."""

import msgspec
import pytest

from app.drafting.engines import EngineRef
from app.drafting.load_config import LoadConfig
from app.drafting.pair import family_of
from app.drafting.placement import Parallel
from app.drafting.plan import drafting_plan
from app.drafting.plan_request import PlanRequest


def as_json(plan):
    return msgspec.json.decode(msgspec.json.encode(plan))


def test_every_public_config_gets_its_method_and_its_id(case):
    plan = drafting_plan(PlanRequest(draft_config=case["config"]))
    assert plan.method == case["expected"]["method"]
    expected = case["expected"]
    expected = expected.get("after_translation") or expected.get("after_speculators_translation") or expected
    if plan.mask_token is not None:
        assert plan.mask_token.mask_token_id == expected["mask_token_id"]
    else:
        assert expected["mask_token_id"] is None


def test_every_public_config_gets_the_engines_capture_points(case):
    """Where the raw file names layers that the engine reads, the plan gives them, whatever else it notices."""
    ids = case["expected"]["vllm_aux_capture_ids"]
    if ids is None or min(ids) < 1:
        return
    hidden = drafting_plan(PlanRequest(draft_config=case["config"])).hidden_states
    assert list(hidden.capture_points) == ids


def test_the_answer_has_the_fields_that_clients_rely_on(sound):
    answer = as_json(drafting_plan(sound(parallel=Parallel(2, 2))))
    assert {
        "ok",
        "method",
        "engine_method",
        "engine",
        "mask_token",
        "load_config",
        "placement",
        "hidden_states",
        "budget",
        "findings",
    } == set(answer)
    assert answer["placement"]["draft_stage"] == 1
    assert answer["placement"]["draft_ranks"] == [2, 3]
    hidden = answer["hidden_states"]
    assert hidden["source"] == "aux_layers"
    assert hidden["layer_ids"] == [1, 9, 17, 25, 33]
    assert hidden["capture_points"] == [2, 10, 18, 26, 34]
    assert hidden["norm"] == "pre"
    assert hidden["width"] == 5 * 4096
    assert hidden["dtype"] == "bfloat16"
    assert hidden["bytes_per_token"] == 5 * 4096 * 2
    assert hidden["rows"] == 8192
    assert hidden["buffer_bytes"] == 8192 * 5 * 4096 * 2
    assert answer["budget"]["required_rows"] == 64 * 16
    assert answer["budget"]["padded_rows"] == 1024


def test_kimi_on_two_stages_loads_its_draft_without_collectives(config_of):
    plan = drafting_plan(
        PlanRequest(
            target_config={
                "text_config": {"hidden_size": 7168, "num_hidden_layers": 93, "vocab_size": 163840}
            },
            draft_config=config_of("dspark-inferact-kimi-k3"),
            load_config=LoadConfig(load_format="fastsafetensors"),
            parallel=Parallel(8, 2),
            dtype="bfloat16",
        )
    )
    assert plan.load_config.target.load_format == "fastsafetensors"
    assert plan.load_config.draft.load_format == "auto"
    assert plan.load_config.reason == "pp_collective_loader"
    assert plan.placement.draft_ranks == tuple(range(8, 16))
    assert plan.hidden_states.width == 5 * 7168
    assert plan.ok


def test_a_draft_load_config_of_its_own_is_kept(sound):
    plan = drafting_plan(
        sound(
            load_config=LoadConfig(load_format="fastsafetensors"),
            draft_load_config=LoadConfig(load_format="safetensors"),
            parallel=Parallel(4, 2),
        )
    )
    assert plan.load_config.target.load_format == "fastsafetensors"
    assert plan.load_config.draft.load_format == "safetensors"


def test_a_drafter_inside_the_target_is_found(config_of):
    plan = drafting_plan(
        PlanRequest(target_config=config_of("dspark-deepseek-v4.1-flash-nested"), max_num_seqs=4)
    )
    assert plan.method == "dspark"
    assert plan.mask_token.mask_token_id == 128799
    assert plan.mask_token.translated_from == "text_config"
    assert plan.hidden_states.capture_points == (37, 38, 39)
    assert plan.hidden_states.convention == "layer_input"
    assert plan.budget.num_speculative_tokens == 5


def test_mtp_on_several_streams_reads_them_before_they_are_joined(config_of):
    plan = drafting_plan(
        PlanRequest(
            target_config=config_of("dspark-deepseek-v4-flash-bundled"),
            method="mtp",
            max_num_batched_tokens=10,
        )
    )
    assert plan.method == "mtp"
    assert plan.hidden_states.source == "pre_hc_head"
    assert plan.hidden_states.width == 16384
    assert plan.hidden_states.buffer_bytes == 16384 * 2 * 10
    assert plan.hidden_states.norm == "pre"
    assert plan.mask_token is None


def test_mtp_on_other_targets_reads_the_final_state(config_of):
    hidden = drafting_plan(PlanRequest(target_config=config_of("mtp-deepseek-v3"))).hidden_states
    assert (hidden.source, hidden.norm, hidden.width, hidden.token_shift) == ("final", "post", 7168, 1)


def test_pard2_is_not_mapped(config_of):
    plan = drafting_plan(PlanRequest(draft_config=config_of("pard2-amd-qwen3-8b")))
    assert plan.hidden_states.layer_ids == (-1, -8, -16, -24)
    assert plan.hidden_states.capture_points is None
    assert plan.hidden_states.width == 16384
    assert plan.hidden_states.first_row == "token0+zero feature"


def test_speculators_ids_are_named_as_in_the_file(config_of):
    plan = drafting_plan(PlanRequest(draft_config=config_of("dspark-vime-speculators_config-null")))
    assert plan.hidden_states.convention == "speculators"
    assert plan.hidden_states.capture_points == (2, 14, 29)


def test_sglang_captures_eagle3_one_later(config_of):
    draft = {"architectures": ["LlamaForCausalLMEagle3"], "eagle_aux_hidden_state_layer_ids": [24, 30, 36]}
    vllm = drafting_plan(PlanRequest(draft_config=draft))
    sglang = drafting_plan(PlanRequest(draft_config=draft, engine=EngineRef("sglang", "0.5.23")))
    assert vllm.hidden_states.capture_points == (24, 30, 36)
    assert sglang.hidden_states.capture_points == (25, 31, 37)


@pytest.mark.parametrize("method", ["ngram", "suffix"])
def test_methods_without_a_model_have_null_parts(target_of, method):
    plan = drafting_plan(PlanRequest(target_config=target_of(), method=method, num_speculative_tokens=4))
    assert plan.method == method
    assert plan.mask_token is plan.load_config is plan.hidden_states is None
    assert plan.placement.draft_ranks is None
    assert plan.ok


def test_a_missing_id_is_a_finding_with_candidates(config_of):
    plan = drafting_plan(PlanRequest(draft_config=config_of("dflash-fork-null-mask")))
    assert plan.mask_token.mask_token_id is None
    assert [(found.source, found.value) for found in plan.mask_token.candidates] == [
        ("dflash_config.mask_token_id", None)
    ]
    assert not plan.ok


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("eagle3", "eagle3"),
        ("EAGLE3", "eagle3"),
        ("NEXTN", "mtp"),
        ("deepseek_mtp", "mtp"),
        ("STANDALONE", "draft_model"),
        ("ngram_gpu", "ngram"),
        ("custom.module.Class", None),
        ("", None),
        (None, None),
    ],
)
def test_engines_names_of_methods(name, family):
    assert family_of(name) == family


def test_the_name_under_which_the_engine_runs_a_family_is_no_contradiction(codes, config_of):
    request = PlanRequest(draft_config=config_of("peagle-automodel-after-serve-fixup"), method="eagle3")
    assert "method_contradicted" not in codes(request)
    assert drafting_plan(request).method == "peagle"


@pytest.mark.parametrize(
    ("name", "method", "found"),
    [
        ("x/eagle-tests", None, True),
        ("x/My-DFlash", None, False),
        ("x/plain", None, True),
        ("x/plain", "dflash", False),
        ("x/eagle-tests", "dflash", False),
        (None, None, False),
    ],
)
def test_the_draft_path_is_a_trap_unless_the_method_is_kept(codes, sound, name, method, found):
    assert ("path_changes_method" in codes(sound(draft_name=name, method=method))) is found


def test_a_target_path_counts_only_where_the_engine_looks_at_it(codes, config_of):
    target = config_of("mtp-deepseek-v3")
    assert "path_changes_method" in codes(
        PlanRequest(target_config=target, target_name="a/eagle-v3", method="mtp")
    )
    assert "path_changes_method" not in codes(PlanRequest(target_config=target, target_name="a/eagle-v3"))
    bundled = config_of("dspark-deepseek-v4-flash-bundled")
    assert "path_changes_method" not in codes(PlanRequest(target_config=bundled, target_name="a/V4-Flash"))
