"""Findings about the method and about whether two models fit each other at all."""

from __future__ import annotations

from .catalogue_entry import Entry

_CONFIG = "vLLM 0.33: vllm/config/speculative.py"

METHOD_ENTRIES = (
    Entry(
        code="method_unknown",
        severity="error",
        happens="Nothing tells how to draft: {reason}.",
        do="Name one of the known methods, or give a drafter whose config says what it is.",
        reports=(_CONFIG,),
    ),
    Entry(
        code="method_removed",
        severity="error",
        happens="{engine} no longer knows the method {method}; the server refuses to start.",
        do="Use an engine version before it was removed, or another drafter.",
        reports=(_CONFIG,),
    ),
    Entry(
        code="method_refused",
        severity="warning",
        evidence="inferred",
        happens="{engine} has no method of its own for {method}; it refuses the drafter or runs it as something else.",
        do="Use an engine that supports {method}, or convert the drafter.",
    ),
    Entry(
        code="method_contradicted",
        severity="warning",
        rows=("C16",),
        happens="The request says {asked}, the drafter's config says {detected} ({evidence}); the engine keeps {asked} "
        "and reads the drafter with the wrong eyes.",
        do="Leave the method out or set it to {detected}.",
        reports=(_CONFIG, "vllm-project/vllm/pull/55257"),
    ),
    Entry(
        code="path_changes_method",
        severity="warning",
        happens="Without a method that it keeps, vLLM goes by the draft's path and class name: {why}, so it takes {by_path}, "
        "while the config says {detected}.",
        do="Set the method explicitly to {engine_method}; if that is not kept, rename the folder.",
        reports=(_CONFIG,),
    ),
    Entry(
        code="architectures_missing",
        severity="warning",
        evidence="reported",
        rows=("A9",),
        happens="The drafter's config names no architectures; engines that map them to a class cannot load it.",
        do="Add the architectures that the drafter's trainer writes for {method}.",
        reports=("lightseekorg/tokenspeed/pull/924",),
    ),
    Entry(
        code="draft_missing",
        severity="error",
        happens="There is no drafter: none is given, and the target's config has none inside for {method}.",
        do="Name a draft model.",
        reports=(_CONFIG,),
    ),
    Entry(
        code="target_missing",
        severity="info",
        happens="Without the target's config, widths, ranges and dtypes of the pair cannot be compared.",
        do="Give the target's config.",
    ),
    Entry(
        code="mtp_depth_unknown",
        severity="info",
        evidence="reported",
        happens="The config does not say how many MTP layers its weights hold; they cannot be counted from here.",
        do="Check the model's card before choosing num_speculative_tokens.",
    ),
    Entry(
        code="mtp_replaced_by_dspark",
        severity="error",
        happens="vLLM refuses the method mtp for DeepSeek V4.1.",
        do="Use dspark; the drafter is in the target's checkpoint.",
        reports=(_CONFIG,),
    ),
    Entry(
        code="v1_runner_fallback",
        severity="info",
        happens="vLLM's V2 runner does not do parallel drafting with {method}; the server falls back to the V1 runner.",
        do="Expect V1's behaviour, also for the draft's load config, which V1 does not guard.",
        reports=("vLLM 0.33: vllm/config/vllm.py",),
    ),
    Entry(
        code="vocab_mismatch",
        severity="error",
        happens="The draft's vocabulary ({draft}) differs from the target's ({target}); vLLM refuses such a draft model, "
        "and other methods would propose ids that mean something else.",
        do="Use a drafter that was made for this target.",
        reports=(_CONFIG,),
    ),
    Entry(
        code="hidden_size_mismatch",
        severity="warning",
        evidence="inferred",
        rows=("D2",),
        happens="The drafter is {draft} wide and names no other width for its input, the target's states are {target} "
        "wide; its input projection will most likely not fit.",
        do="Pair it with the target that it was trained on.",
        reports=("sgl-project/sglang/pull/13590",),
    ),
    Entry(
        code="target_depth_mismatch",
        severity="warning",
        evidence="inferred",
        happens="The drafter was made for a target with {draft} layers, this one has {target}.",
        do="Pair it with the target that it was trained on.",
    ),
    Entry(
        code="dtype_incompatible",
        severity="error",
        evidence="reported",
        rows=("C19",),
        happens="DFlash2 with {dtype}: no drafted token is ever accepted, while the output stays right and only slow.",
        do="Serve with dtype bfloat16.",
        reports=("vllm-project/vllm/issues/55250", "vllm-project/vllm/pull/55294"),
    ),
    Entry(
        code="draft_dtype_mismatch",
        severity="warning",
        evidence="reported",
        rows=("C21",),
        happens="The draft's config says {draft}, the target's hidden states are {target}; code that loads the draft as "
        "written fails in its first matrix product.",
        do="Let the draft be loaded in the target's dtype, and check that its weights survive that.",
        reports=("NVIDIA/Model-Optimizer/pull/2483",),
    ),
    Entry(
        code="sample_from_anchor_unsupported",
        severity="error",
        happens="The drafter samples from its anchor, which vLLM refuses for DFlash.",
        do="Use a drafter trained without sample_from_anchor, or serve it as dspark if it is one.",
        reports=(_CONFIG,),
    ),
    Entry(
        code="pard2_first_row",
        severity="warning",
        evidence="reported",
        rows=("C16",),
        happens="PARD-2 wants its first row to be token 0 with a zero feature; a path made for EAGLE shifts it away, and "
        "one checkpoint loses most of its acceptance.",
        do="Use an engine with a path of its own for PARD-2.",
        reports=("vllm-project/vllm/pull/55257", "vllm-project/vllm/pull/49406"),
    ),
    Entry(
        code="mask_token_override_required",
        severity="error",
        evidence="reported",
        rows=("A7",),
        happens="{method} without a drafter of its own reads the mask token id from the target's config, which has none.",
        do="Write the trained id into the config that the engine reads (for example with hf-overrides).",
        reports=("vllm-project/vllm/pull/45007",),
    ),
    Entry(
        code="mask_token_unverified",
        severity="info",
        evidence="reported",
        rows=("A2",),
        happens="The config declares mask token id {declared} ({source}); a config cannot show that the weights were "
        "trained with it.",
        do="Give trained_mask_token_id, from the training run, to have the two compared.",
        reports=("sgl-project/SpecForge/pull/604",),
    ),
    Entry(
        code="mask_token_differs_from_training",
        severity="error",
        evidence="reported",
        rows=("A2",),
        happens="The engine reads mask token id {declared} from {source}, the drafter was trained with {trained}; it "
        "would draft from an untrained embedding.",
        do="Correct the config.",
        reports=("sgl-project/SpecForge/pull/604",),
    ),
)
