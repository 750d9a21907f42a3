"""For every finding: a pair that has it, and the same pair put right.

``bad`` and ``fixed`` are changes to the sound pair of ``conftest.sound`` (see ``Example``); ``rows`` are the ids of the
collected reports that the example replays.
"""

from typing import Any, NamedTuple

from app.drafting.engines import EngineRef


class Example(NamedTuple):
    code: str
    draft: str | None  # a public config's name; None: the drafter lives in the target
    bad: dict[
        str, Any
    ]  # changes: ``draft``, ``target`` hold changes of the configs, the rest goes to the request
    fixed: dict[str, Any]
    rows: tuple[str, ...] = ()
    severity: str | None = None
    says: tuple[str, ...] = ()  # what the detail must name


QWEN_DFLASH = "dflash-specforge-qwen3-8b-dflash"
KIMI = "dspark-inferact-kimi-k3"
GLM = {"hidden_size": 6144, "num_hidden_layers": 78, "vocab_size": 154880}
NO_IDS = {"dflash_config": {"target_layer_ids": [1, 9, 17, 25, 33]}}
EAGLE3 = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": 4096,
    "vocab_size": 151936,
    "eagle_aux_hidden_state_layer_ids": [2, 18, 33],
    "dtype": "bfloat16",
}


def vllm(version):
    return EngineRef("vllm", version)


def ids(*layers, mask=151669, **more):
    return {"dflash_config": {"mask_token_id": mask, "target_layer_ids": list(layers), **more}}


MASK_TOKEN = [
    Example("mask_token_missing", QWEN_DFLASH, {"draft": NO_IDS}, {}, ("A1", "A5"), "error"),
    Example("mask_token_invalid", QWEN_DFLASH, {"draft": ids(1, mask=None)}, {}, (), "error"),
    Example("mask_token_equals_eos", QWEN_DFLASH, {"draft": ids(1, 9, mask=151645)}, {}, ("A1",), "warning"),
    Example(
        "mask_token_equals_pad",
        "dspark-torchspec-glm-5.2-pad-placeholder",
        {"target": {**GLM, "eos_token_id": [154820, 154827], "pad_token_id": 154820}},
        {"target": {**GLM, "eos_token_id": [154827], "pad_token_id": 154828}},
        ("A3",),
        "warning",
    ),
    Example(
        "mask_token_negative",
        "pard-no-unused-ids-negative",
        {},
        {"draft": {"pard_token": 7}},
        ("A4",),
        "error",
    ),
    Example(
        "mask_token_out_of_range",
        "dflash-modelopt-minimax-m2.7",
        {"target": {"vocab_size": 200000}},
        {"target": {"vocab_size": 200064}},
        ("A6",),
        "error",
    ),
    Example(
        "mask_token_override_required",
        None,
        {"method": "dflash"},
        {"method": "dflash", "target": {"mask_token_id": 5}},
        ("A7",),
        "error",
    ),
    Example(
        "mask_token_unverified",
        QWEN_DFLASH,
        {"trained_mask_token_id": None},
        {},
        ("A2",),
        "info",
        ("151669",),
    ),
    Example(
        "mask_token_differs_from_training",
        QWEN_DFLASH,
        {"trained_mask_token_id": 151665},
        {},
        ("A2",),
        "error",
        ("151665", "151669"),
    ),
]

METHODS = [
    Example("method_unknown", QWEN_DFLASH, {"method": "warp"}, {"method": "dflash"}, (), "error", ("warp",)),
    Example(
        "method_removed",
        "medusa-vicuna-7b",
        {"engine": vllm("0.33.0")},
        {"engine": vllm("0.32.0")},
        (),
        "error",
    ),
    Example("method_refused", "domino-modelopt-qwen3-8b", {}, {"draft": ids(1, 9)}, (), "warning"),
    Example(
        "method_contradicted",
        "pard2-amd-qwen3-8b",
        {"method": "eagle"},
        {"method": "pard2"},
        ("C16",),
        "warning",
        ("eagle", "pard2"),
    ),
    Example(
        "path_changes_method",
        QWEN_DFLASH,
        {"draft_name": "/models/eagle-tests/Qwen3-8B-DFlash"},
        {"draft_name": "z-lab/Qwen3-8B-DFlash-b16"},
        (),
        "warning",
        ("eagle-",),
    ),
    Example(
        "architectures_missing",
        KIMI,
        {"draft": {"architectures": ...}},
        {},
        ("A9",),
        "warning",
        ("dspark",),
    ),
    Example("draft_missing", None, {"method": "eagle3"}, {"method": "ngram"}, (), "error"),
    Example("target_missing", QWEN_DFLASH, {"target_config": None}, {}, (), "info"),
    Example("mtp_depth_unknown", "mtp-mimo-v2-no-field", {}, {"draft": {"num_nextn_predict_layers": 1}}),
    Example(
        "mtp_replaced_by_dspark",
        None,
        {"method": "mtp", "target": {"model_type": "deepseek_v41", "num_nextn_predict_layers": 1}},
        {"method": "mtp", "target": {"model_type": "deepseek_v4", "num_nextn_predict_layers": 1}},
        (),
        "error",
    ),
    Example("v1_runner_fallback", "pard-amd-llama-3.2-1b", {}, {"engine": EngineRef("sglang", "0.5.23")}),
    Example("engine_assumed", QWEN_DFLASH, {"engine": None}, {}, ("A11",), "info", ("0.33.0",)),
    Example(
        "engine_version_unknown", QWEN_DFLASH, {"engine": vllm("0.29.0")}, {}, ("A11",), "info", ("0.29.0",)
    ),
]

MODELS = [
    Example(
        "vocab_mismatch",
        None,
        {"draft_config": {"architectures": ["LlamaForCausalLM"], "vocab_size": 32000}},
        {"draft_config": {"architectures": ["LlamaForCausalLM"], "vocab_size": 151936}},
        (),
        "error",
        ("32000", "151936"),
    ),
    Example("hidden_size_mismatch", QWEN_DFLASH, {"draft": {"hidden_size": 2560}}, {}, ("D2",), "warning"),
    Example("width_mismatch", QWEN_DFLASH, {"draft": {"target_hidden_size": 2560}}, {}, ("D2",), "error"),
    Example("target_depth_mismatch", QWEN_DFLASH, {"draft": {"num_target_layers": 40}}, {}, (), "warning"),
    Example(
        "dtype_incompatible",
        "dflash2-zlab-qwen3.8-27b",
        {"dtype": "float16"},
        {"dtype": "bfloat16"},
        ("C19",),
        "error",
        ("float16",),
    ),
    Example("draft_dtype_mismatch", QWEN_DFLASH, {"draft": {"dtype": "float32"}}, {}, ("C21",), "warning"),
    Example(
        "sample_from_anchor_unsupported",
        QWEN_DFLASH,
        {"draft": {"sample_from_anchor": True}},
        {},
        (),
        "error",
    ),
    Example("pard2_first_row", "pard2-amd-qwen3-8b", {}, {"draft_config": EAGLE3}, ("C16",), "warning"),
]

EXAMPLES = [*MASK_TOKEN, *METHODS, *MODELS]
