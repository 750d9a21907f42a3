"""Examples of findings about layers, steps and parallel engines; those about the two models are in ``examples.py``."""

import importlib.util
from pathlib import Path

from app.drafting.engines import EngineRef
from app.drafting.load_config import LoadConfig
from app.drafting.placement import Parallel

_SPEC = importlib.util.spec_from_file_location("plan_examples_pairs", Path(__file__).with_name("examples.py"))
PAIRS = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(PAIRS)
Example, vllm, ids = PAIRS.Example, PAIRS.vllm, PAIRS.ids
QWEN_DFLASH, KIMI, EAGLE3 = PAIRS.QWEN_DFLASH, PAIRS.KIMI, PAIRS.EAGLE3

FAST = LoadConfig(load_format="fastsafetensors")
GLM = {"hidden_size": 6144, "num_hidden_layers": 78, "vocab_size": 154880}
V4 = {"model_type": "deepseek_v4", "architectures": ["DeepseekV4ForCausalLM"], "hc_mult": 4}
MTP = {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "num_nextn_predict_layers": 1}

LAYERS = [
    Example(
        "tap_ids_unshifted",
        QWEN_DFLASH,
        {"draft": {"eagle_aux_hidden_state_layer_ids": [1, 9, 17, 25, 33]}},
        {"draft": {"eagle_aux_hidden_state_layer_ids": [2, 10, 18, 26, 34]}},
        ("C3",),
        "error",
    ),
    Example("tap_ids_disagree", QWEN_DFLASH, {"draft": {"target_layer_ids": [3, 4]}}, {}, (), "warning"),
    Example(
        "tap_out_of_range",
        QWEN_DFLASH,
        {"draft": ids(1, 48), "target": {"num_hidden_layers": 48}},
        {"draft": ids(1, 46), "target": {"num_hidden_layers": 48}},
        ("C18",),
        "error",
        ("49", "48"),
    ),
    Example("tap_ids_duplicated", QWEN_DFLASH, {"draft": ids(1, 9, 9)}, {}, (), "error"),
    Example("tap_ids_unsorted", QWEN_DFLASH, {"draft": ids(9, 1)}, {}, (), "info"),
    Example("tap_ids_unmappable", "pard2-speculators-fixture", {}, {"draft": {"target_layer_ids": [1, 2]}}),
    Example(
        "tap_ids_not_read",
        "eagle3-specforge-gpt-oss-20b-eagle3",
        {},
        {"draft": {"eagle_config": ..., "eagle_aux_hidden_state_layer_ids": [2, 12, 22]}},
    ),
    Example(
        "tap_ids_defaulted",
        "eagle3-specforge-phi4-eagle3",
        {},
        {"draft": {"eagle_aux_hidden_state_layer_ids": [2, 18, 33]}},
    ),
    Example(
        "tap_ids_versioned", "dspark-speculators-qwen3-block7", {}, {"draft_config": EAGLE3}, (), "warning"
    ),
    Example(
        "tap_ids_engine_dependent",
        None,
        {"draft_config": EAGLE3, "engine": EngineRef("sglang", "0.5.23")},
        {"draft_config": EAGLE3},
        ("C7",),
        "warning",
    ),
    Example(
        "last_layer_tap",
        "dspark-automodel-glm-5.2",
        {"target": GLM},
        {"target": GLM, "draft": {"target_layer_ids": [74, 75, 76]}},
        ("C5",),
        "warning",
    ),
    Example(
        "last_layer_tap",
        "dspark-deepseek-v4-flash-bundled",
        {"target": {"num_hidden_layers": 43}},
        {"target": {"num_hidden_layers": 44}},
        ("C5",),
    ),
    Example(
        "norm_flags_needed",
        None,
        {"draft_config": {**EAGLE3, "norm_before_fc": True}},
        {"draft_config": EAGLE3},
        ("C7", "F2"),
        "warning",
        ("norm_before_fc",),
    ),
    Example("no_hidden_states", "pard-amd-llama-3.2-1b", {}, {"draft_config": EAGLE3}, ("D3",), "info"),
    Example(
        "streams_unknown",
        None,
        {"method": "mtp", "target": {**V4, "num_nextn_predict_layers": 1, "hc_mult": None}},
        {"method": "mtp", "target": {**V4, "num_nextn_predict_layers": 1}},
    ),
    Example(
        "prefix_caching_shortens_rows",
        None,
        {"method": "extract_hidden_states", "num_speculative_tokens": 1},
        {"method": "extract_hidden_states", "num_speculative_tokens": 1, "enable_prefix_caching": False},
        ("C26",),
        "warning",
    ),
    Example(
        "extract_layers_missing",
        None,
        {"method": "extract_hidden_states", "draft_config": {}},
        {"method": "extract_hidden_states", "draft_config": {"eagle_aux_hidden_state_layer_ids": [1, 9]}},
        (),
        "error",
    ),
]

STEPS = [
    Example(
        "rows_exceed_buffer",
        QWEN_DFLASH,
        {"max_num_batched_tokens": 2048, "max_num_seqs": 256, "num_speculative_tokens": 8},
        {"max_num_batched_tokens": 2304, "max_num_seqs": 256, "num_speculative_tokens": 8},
        ("S1",),
        "error",
        ("2304", "2048"),
    ),
    Example(
        "rows_padded_for_graphs",
        QWEN_DFLASH,
        {"max_num_seqs": 33, "num_speculative_tokens": 3},
        {"max_num_seqs": 34, "num_speculative_tokens": 3},
        ("S3",),
        "info",
        ("132", "136"),
    ),
    Example(
        "rows_padded_for_graphs",
        QWEN_DFLASH,
        {"max_num_seqs": 33, "num_speculative_tokens": 3, "max_num_batched_tokens": 132},
        {"max_num_seqs": 34, "num_speculative_tokens": 3, "max_num_batched_tokens": 136},
        ("S3",),
        "warning",
    ),
    Example(
        "negative_token_budget",
        QWEN_DFLASH,
        {
            "max_num_batched_tokens": 2048,
            "max_num_seqs": 256,
            "num_speculative_tokens": 16,
            "engine": vllm("0.26.0"),
        },
        {
            "max_num_batched_tokens": 8192,
            "max_num_seqs": 256,
            "num_speculative_tokens": 16,
            "engine": vllm("0.26.0"),
        },
        ("S4",),
        None,
        ("-1792", "2048", "15", "256"),
    ),
    Example(
        "negative_token_budget",
        QWEN_DFLASH,
        {
            "max_num_batched_tokens": 120,
            "max_num_seqs": 60,
            "num_speculative_tokens": 7,
            "engine": vllm("0.26.0"),
        },
        {
            "max_num_batched_tokens": 120,
            "max_num_seqs": 8,
            "num_speculative_tokens": 7,
            "engine": vllm("0.26.0"),
        },
        ("S5",),
        None,
        ("-240", "120", "60", "6 slots"),
    ),
    Example(
        "negative_token_budget",
        QWEN_DFLASH,
        {"max_num_batched_tokens": 512, "max_num_seqs": 64, "engine": vllm("0.32.0")},
        {"max_num_batched_tokens": 512, "max_num_seqs": 64, "engine": vllm("0.33.0")},
        (),
        "error",
    ),
    Example("budget_incomplete", QWEN_DFLASH, {"max_num_seqs": None}, {}, (), "info", ("max_num_seqs",)),
    Example("extra_slots_unknown", QWEN_DFLASH, {"engine": vllm("0.29.0")}, {}, (), "info"),
    Example(
        "num_speculative_tokens_missing",
        QWEN_DFLASH,
        {"num_speculative_tokens": None},
        {},
        (),
        "info",
    ),
    Example(
        "n_predict_indivisible",
        None,
        {"target": {**MTP, "num_nextn_predict_layers": 2}, "num_speculative_tokens": 3},
        {"target": {**MTP, "num_nextn_predict_layers": 2}, "num_speculative_tokens": 4},
        (),
        "error",
    ),
    Example(
        "extract_tokens_not_one",
        None,
        {"method": "extract_hidden_states", "num_speculative_tokens": 3},
        {"method": "extract_hidden_states", "num_speculative_tokens": 1},
        (),
        "error",
    ),
    Example(
        "block_size_mismatch",
        "dspark-deepseek-v4-flash-bundled",
        {"num_speculative_tokens": 3},
        {"num_speculative_tokens": 5},
        ("S6",),
        "warning",
        ("3", "5"),
    ),
    Example(
        "block_size_mismatch",
        "dspark-deepseek-v4-flash-bundled",
        {"num_speculative_tokens": 7},
        {"num_speculative_tokens": 5},
        ("S7",),
        "warning",
    ),
]

PARALLEL = [
    Example(
        "draft_tp_unsupported",
        QWEN_DFLASH,
        {"parallel": Parallel(8, 1, 4)},
        {"parallel": Parallel(8, 1, 8)},
        (),
        "error",
    ),
    Example(
        "shared_embeddings_not_on_draft_stage",
        None,
        {"target": MTP, "num_speculative_tokens": 3, "parallel": Parallel(4, 2)},
        {"target": MTP, "num_speculative_tokens": 3, "parallel": Parallel(8, 1)},
        ("B7",),
        "warning",
    ),
    Example(
        "pp_runtime_deadlock",
        KIMI,
        {"parallel": Parallel(1, 8)},
        {"parallel": Parallel(8, 1)},
        ("B9",),
        "warning",
    ),
    Example("aux_over_pp_unsupported", KIMI, {"parallel": Parallel(1, 2)}, {"parallel": Parallel(2, 1)}),
    Example(
        "pp_unsupported",
        QWEN_DFLASH,
        {"parallel": Parallel(1, 2), "engine": EngineRef("sglang", "0.5.23")},
        {"parallel": Parallel(2, 1), "engine": EngineRef("sglang", "0.5.23")},
        (),
        "error",
    ),
    Example(
        "pp_guard_missing",
        KIMI,
        {"parallel": Parallel(8, 2), "load_config": FAST, "engine": vllm("0.26.0")},
        {"parallel": Parallel(8, 2), "load_config": FAST, "engine": vllm("0.33.0")},
        ("B1",),
        "error",
    ),
    Example(
        "draft_load_config_ignored",
        None,
        {
            "draft_config": {"architectures": ["Qwen3ForCausalLM"], "vocab_size": 151936},
            "load_config": FAST,
            "draft_load_config": LoadConfig(),
        },
        {
            "draft_config": {"architectures": ["Qwen3ForCausalLM"], "vocab_size": 151936},
            "load_config": LoadConfig(),
            "draft_load_config": LoadConfig(),
        },
        ("B3",),
    ),
    Example(
        "draft_load_config_unknown",
        QWEN_DFLASH,
        {"load_config": FAST, "draft_load_config": LoadConfig(), "engine": vllm("0.28.0")},
        {"load_config": FAST, "draft_load_config": LoadConfig(), "engine": vllm("0.33.0")},
        ("B3",),
    ),
    Example(
        "collective_loader_unguarded",
        QWEN_DFLASH,
        {"parallel": Parallel(1, 2), "load_config": LoadConfig(load_format="instanttensor")},
        {"parallel": Parallel(1, 2), "load_config": LoadConfig(load_format="safetensors")},
        ("B8",),
        "warning",
    ),
]

EXAMPLES = [*PAIRS.EXAMPLES, *LAYERS, *STEPS, *PARALLEL]
