"""What the mask token answer and the load config answer find; their own modules word it for the case at hand."""

from __future__ import annotations

from .catalogue_entry import Entry

_READING = "vLLM 0.33: vllm/v1/worker/gpu/spec_decode/utils.py"
_LOADERS = "vLLM 0.33: vllm/model_executor/model_loader/"
_HANG = "vllm-project/vllm/issues/50959"

ANSWER_ENTRIES = (
    Entry(
        code="mask_token_missing",
        severity="error",
        rows=("A1", "A5"),
        happens="A parallel drafter names no mask token id; the engine refuses it, and ids taken from pad, eos or the "
        "target's tokenizer made acceptance drop without an error.",
        do="Set the id that the drafter was trained with.",
        reports=("NVIDIA-NeMo/Automodel/pull/2461", "ggml-org/llama.cpp/pull/25110"),
    ),
    Entry(
        code="mask_token_invalid",
        severity="error",
        happens="The place that decides holds no integer (null included), and nothing after it is read.",
        do="Set it to the id that the drafter was trained with.",
        reports=(_READING,),
    ),
    Entry(
        code="mask_token_negative",
        severity="error",
        rows=("A4",),
        happens="A negative id is no row of an embedding: the look-up wraps around or fails.",
        do="Set the id that the drafter was trained with.",
        reports=("ggml-org/llama.cpp/issues/26761",),
    ),
    Entry(
        code="mask_token_out_of_range",
        severity="error",
        rows=("A6",),
        happens="The id is not below the target's vocabulary; a row added by resizing is neither trained nor exported.",
        do="Use an id of the target's embedding that the drafter was trained with.",
        reports=("NVIDIA/Model-Optimizer/pull/1621",),
    ),
    Entry(
        code="mask_token_equals_eos",
        rows=("A1", "A3"),
        evidence="reported",
        happens="The id is an end-of-sequence token, too: often a placeholder, and acceptance drops.",
        do="Check which id the drafter was trained with.",
        reports=("lightseekorg/TorchSpec/pull/133", "NVIDIA-NeMo/Automodel/pull/2461"),
    ),
    Entry(
        code="mask_token_equals_pad",
        rows=("A1", "A3"),
        evidence="reported",
        happens="The id is the padding token, too: often a placeholder, and acceptance drops.",
        do="Check which id the drafter was trained with.",
        reports=("lightseekorg/TorchSpec/pull/133", "NVIDIA-NeMo/Automodel/pull/2461"),
    ),
    Entry(
        code="mask_token_equals_bos",
        rows=("A1",),
        evidence="reported",
        happens="The id is the begin-of-sequence token, too.",
        do="Check which id the drafter was trained with.",
        reports=("NVIDIA-NeMo/Automodel/pull/2461",),
    ),
    Entry(
        code="mask_token_not_integer",
        evidence="run by us",
        happens="The id is a string, a number with a fraction part or a boolean; vLLM converts it, others refuse it.",
        do="Write it as an integer.",
        reports=(_READING,),
    ),
    Entry(
        code="mask_token_truncated",
        evidence="run by us",
        happens="The id has a fraction, which vLLM cuts off.",
        do="Write the integer that the drafter was trained with.",
        reports=(_READING,),
    ),
    Entry(
        code="mask_token_candidates_disagree",
        happens="Several places name different ids; vLLM reads the first of its order, other readers may not.",
        do="Keep the trained id in every place, or in one.",
        reports=(_READING,),
    ),
    Entry(
        code="mask_token_null_skipped",
        severity="info",
        happens="A top-level mask_token_id of null is skipped, unlike a null anywhere else.",
        do="Leave it out or set it.",
        reports=(_READING,),
    ),
    Entry(
        code="mask_token_not_needed",
        severity="info",
        happens="The method drafts no block at once, and needs no mask token id.",
        do="Nothing, unless it is served with parallel drafting.",
    ),
    Entry(
        code="vocab_size_unknown",
        severity="info",
        happens="Neither config says how many rows the embedding has, so the id is not checked.",
        do="Give the target.",
    ),
    Entry(
        code="engine_dependent_mask_token",
        severity="error",
        happens="vLLM and SGLang read different ids from this file; an error for SGLang, a warning else.",
        do="Write the id where both read it.",
    ),
    Entry(
        code="engine_mask_token_unknown",
        severity="info",
        happens="SGLang reads an id for DFLASH and DSPARK only.",
        do="Check what this engine does with the drafter.",
    ),
    Entry(
        code="mask_token_order_unknown",
        happens="In which order this version reads the id is not known.",
        do="Check it on that version.",
    ),
    Entry(
        code="version_dependent_mask_token",
        severity="error",
        happens="vLLM 0.16 read pard_token and ptd_token_id only; an error for that version, a note else.",
        do="Copy the id to pard_token, or upgrade.",
    ),
    Entry(
        code="speculators_type_unregistered",
        severity="error",
        evidence="run by us",
        happens="The file is in the speculators format, of a type that vLLM refuses.",
        do="Convert the checkpoint or use an engine that knows the type.",
    ),
    Entry(
        code="speculators_config_missing",
        severity="info",
        happens="vLLM recognises the speculators format by speculators_config, which is missing.",
        do="Add it, or a model_type.",
    ),
    Entry(
        code="dflash2_variant",
        severity="info",
        evidence="reported",
        happens="The architecture is DFlash2's; engines are told dflash.",
        do="Serve it in bfloat16.",
        reports=("vllm-project/vllm/issues/55250",),
    ),
    Entry(
        code="method_label_contradicts",
        happens="The class name says another family than the rest of the file.",
        do="Tell the engine the method explicitly.",
    ),
    Entry(
        code="duplicate_keys",
        happens="The file names a key more than once; the last one wins here, elsewhere perhaps the first.",
        do="Remove the copies.",
    ),
    Entry(
        code="load_format_unregistered",
        evidence="run by us",
        happens="vLLM registers no such load format; without a plug-in loading fails, late.",
        do="Install the plug-in or use a registered format.",
        reports=(_LOADERS + "__init__.py",),
    ),
    Entry(
        code="pp_guard_missing",
        severity="error",
        evidence="reported",
        rows=("B1",),
        happens="This version loads the draft with fastsafetensors on the last pipeline stage only, and its broadcasts "
        "wait for stages that load no draft: a hang until a watchdog ends it.",
        do="Load the draft with auto, or upgrade.",
        reports=(_HANG, "vllm-project/vllm/pull/54416"),
    ),
    Entry(
        code="pp_guard_unknown",
        rows=("B1",),
        happens="Whether this version falls back to auto is not known.",
        do="Set the draft's load format explicitly.",
        reports=(_HANG, "vllm-project/vllm/pull/54416"),
    ),
    Entry(
        code="method_unguarded",
        evidence="inferred",
        rows=("B1",),
        happens="This method's code path skips the fallback and would wait for the other pipeline stages.",
        do="Use auto or safetensors explicitly.",
        reports=(_HANG,),
    ),
    Entry(
        code="collective_loader_unguarded",
        evidence="inferred",
        rows=("B8",),
        happens="instanttensor, and runai_streamer when distributed, open files collectively over all ranks, and no known "
        "release falls back for them: a draft on one pipeline stage may hang.",
        do="Set draft_load_config to auto.",
        reports=("scitix/InstantTensor/issues/13",),
    ),
    Entry(
        code="draft_load_config_ignored",
        rows=("B3",),
        happens="This code path loads the draft with the target's load config, whatever draft_load_config says.",
        do="Choose a target load config that suits both.",
        reports=("vllm-project/vllm/pull/55337",),
    ),
    Entry(
        code="draft_load_config_unknown",
        evidence="reported",
        rows=("B3",),
        happens="Whether this version honours draft_load_config is not known; some silently ignore it.",
        do="Check that version's log.",
        reports=("vllm-project/vllm/pull/55337",),
    ),
    Entry(
        code="ipc_cache_method_unknown",
        happens="Whether the draft comes from the ipc_cache depends on the method, which is not known.",
        do="Name the method.",
        reports=(_LOADERS + "utils.py",),
    ),
    Entry(
        code="ipc_cache_told_as_eagle3",
        severity="info",
        happens="vLLM is told eagle3 for P-EAGLE drafters and takes them from the ipc_cache, too.",
        do="Set draft_load_config to decide it.",
        reports=(_LOADERS + "utils.py",),
    ),
    Entry(
        code="config_from_cache",
        severity="info",
        evidence="run by us",
        happens="The hub did not answer, so the config is the one that was cached before.",
        do="Ask again when the hub is back, if it may have changed.",
    ),
    Entry(
        code="generation_config_unavailable",
        severity="info",
        evidence="run by us",
        happens="The hub did not give the generation config, so special tokens named only there are not compared.",
        do="Ask again when the hub is back.",
    ),
)
