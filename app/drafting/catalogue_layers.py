"""Findings about the layers that a drafter reads, their widths and their norms."""

from __future__ import annotations

from .catalogue_entry import Entry

_LOOKUP = "vLLM 0.33: vllm/v1/worker/gpu/spec_decode/eagle/eagle3_utils.py"

LAYER_ENTRIES = (
    Entry(
        code="tap_ids_unshifted",
        severity="error",
        evidence="reported",
        rows=("C3",),
        happens="{first} and {second} hold the same numbers, but one counts layer inputs and the other layer outputs: "
        "the engine captures one layer too early, and acceptance drops without an error.",
        do="Add one to every id of {first}, or drop {first}.",
        reports=("microsoft/onnxruntime-genai/pull/2538", "vllm-project/vllm/pull/40727"),
    ),
    Entry(
        code="tap_ids_disagree",
        severity="warning",
        happens="The config names different layers in different places ({places}); the engine takes the first it reads, "
        "{first}.",
        do="Make them agree, mind the two ways of counting.",
        reports=(_LOOKUP,),
    ),
    Entry(
        code="tap_out_of_range",
        severity="error",
        evidence="reported",
        rows=("C18",),
        happens="Capture points {points} lie outside [0, {num_layers}] of a target with {num_layers} layers; the engine "
        "fails or silently captures another layer.",
        do="Check how the ids count: an id equal to the number of layers is right only when ids count layer inputs.",
        reports=("charlie12345/ROCmFPX/issues/44",),
    ),
    Entry(
        code="tap_ids_duplicated",
        severity="error",
        evidence="run by us",
        happens="Capture points {points} repeat a layer; vLLM dies at the first request.",
        do="Name every layer once.",
        reports=(_LOOKUP,),
    ),
    Entry(
        code="tap_ids_unsorted",
        severity="info",
        evidence="run by us",
        happens="The ids are not in ascending order; vLLM concatenates layers in ascending order, Draftport keeps the "
        "order of the config.",
        do="Sort the ids, unless the drafter was trained on another order.",
        reports=(_LOOKUP,),
    ),
    Entry(
        code="tap_ids_unmappable",
        severity="warning",
        evidence="reported",
        happens="The layer ids {ids} of {place} are numbered in a way ({convention}) that has no capture points agreed "
        "between engines{instead}.",
        do="Use an engine that reads this drafter's own convention.",
        reports=("vllm-project/vllm/pull/55257",),
    ),
    Entry(
        code="tap_ids_not_read",
        severity="warning",
        happens="vLLM does not read {place}, where the drafter names layers {ids}; it captures its default {default} "
        "instead.",
        do="Copy the ids to the top level as eagle_aux_hidden_state_layer_ids, counted as layer inputs.",
        reports=(_LOOKUP,),
    ),
    Entry(
        code="tap_ids_defaulted",
        severity="warning",
        happens="The drafter names no layers; vLLM captures (2, n // 2, n - 3), here {points}.",
        do="Check that the drafter was trained on these layers; other engines choose others.",
        reports=(_LOOKUP,),
    ),
    Entry(
        code="tap_ids_versioned",
        severity="warning",
        evidence="reported",
        contested=True,
        happens="Engines have read the speculators format's layer ids in more than one way: as capture points, or one "
        "less.",
        do="Compare acceptance after an upgrade, and keep capture points {points} in mind.",
        reports=("vllm-project/vllm/pull/40727",),
    ),
    Entry(
        code="tap_ids_engine_dependent",
        severity="warning",
        evidence="reported",
        rows=("C7",),
        happens="SGLang adds one to EAGLE-3's layer ids and vLLM takes them as they are; the same file captures "
        "different layers in the two.",
        do="Check which of them the drafter was trained for.",
        reports=("sgl-project/sglang/pull/32334",),
    ),
    Entry(
        code="last_layer_tap",
        severity="warning",
        evidence="reported",
        contested=True,
        rows=("C5",),
        happens="The drafter reads the last layer's output: some engines give it before the final norm, others after, "
        "and the drafter sees another feature than it was trained on.",
        do="Check with the drafter's trainer which one it was; vLLM gives it before the norm.",
        reports=("verl-project/verl-SpeCo/issues/20",),
    ),
    Entry(
        code="width_mismatch",
        severity="error",
        evidence="reported",
        rows=("C7", "D2"),
        happens="{reason}",
        do="Its first matrix product will not fit otherwise.",
        reports=("sgl-project/sglang/pull/32334", "sgl-project/sglang/pull/13590"),
    ),
    Entry(
        code="norm_flags_needed",
        severity="warning",
        evidence="reported",
        contested=True,
        rows=("C7", "F2"),
        happens="The drafter's flags {flags} change what it must be fed; engines that do not know them ignore them, and "
        "acceptance drops.",
        do="Use an engine version that honours them.",
        reports=("vllm-project/speculators/pull/337", "sgl-project/sglang/pull/32334"),
    ),
    Entry(
        code="no_hidden_states",
        severity="info",
        evidence="reported",
        rows=("D3",),
        happens="{method} reads no hidden states of the target.",
        do="Transfer none, and never a buffer that was not written.",
        reports=("sgl-project/sglang/pull/7242",),
    ),
    Entry(
        code="streams_unknown",
        severity="warning",
        evidence="inferred",
        happens="The target joins several residual streams before its head, but its config does not say how many; the "
        "drafter's width is unknown.",
        do="Check hc_mult in the target's config.",
    ),
    Entry(
        code="prefix_caching_shortens_rows",
        severity="warning",
        evidence="reported",
        rows=("C26",),
        happens="With prefix caching the exported hidden states are shorter than the prompt's tokens.",
        do="Switch prefix caching off for extract_hidden_states, or compare the number of rows with the prompt.",
        reports=("vllm-project/vllm/issues/44485",),
    ),
    Entry(
        code="extract_layers_missing",
        severity="error",
        happens="extract_hidden_states names no layers to export; vLLM refuses to start.",
        do="Set eagle_aux_hidden_state_layer_ids in the draft's config.",
        reports=("vLLM 0.33: vllm/config/speculative.py",),
    ),
)
