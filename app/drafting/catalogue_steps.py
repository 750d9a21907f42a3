"""Findings about a step's rows and tokens, and about parallel engines."""

from __future__ import annotations

from .catalogue_entry import Entry

_CONFIG = "vLLM 0.33: vllm/config/speculative.py"

STEP_ENTRIES = (
    Entry(
        code="rows_exceed_buffer",
        severity="error",
        evidence="reported",
        rows=("S1",),
        happens="A full step needs {required} rows ({seqs} requests x {per_request}), more than max_num_batched_tokens "
        "{available}{consequence}.",
        do="Raise max_num_batched_tokens to {required}, or lower max_num_seqs or num_speculative_tokens.",
        reports=("vllm-project/vllm/pull/53970",),
    ),
    Entry(
        code="rows_padded_for_graphs",
        severity="warning",
        evidence="reported",
        rows=("S3",),
        happens="{required} rows are padded to {padded} for the captured graphs; a buffer made for exactly {required} is "
        "too short.",
        do="Choose max_num_seqs so that {required} is a captured size, or use a version with the fix.",
        reports=("vllm-project/vllm/pull/50065",),
    ),
    Entry(
        code="negative_token_budget",
        severity="error",
        evidence="reported",
        rows=("S4", "S5"),
        happens="The scheduler has {budget} tokens left: max_num_batched_tokens {available} - {slots} slots per request x "
        "max_num_seqs {seqs}; the server does not start.",
        do="Raise max_num_batched_tokens above {kept}, or lower max_num_seqs or num_speculative_tokens.",
        reports=("vllm-project/vllm/issues/50708", "vllm-project/vllm-ascend/issues/13717"),
    ),
    Entry(
        code="budget_incomplete",
        severity="info",
        happens="The step's rows cannot be calculated: {missing}.",
        do="Give what is missing to have them checked.",
    ),
    Entry(
        code="extra_slots_unknown",
        severity="info",
        evidence="inferred",
        happens="How many tokens per request {engine} keeps free for {method} is not established.",
        do="Watch the scheduler's token budget in its start-up log.",
    ),
    Entry(
        code="num_speculative_tokens_missing",
        severity="info",
        happens="num_speculative_tokens is neither given nor defaulted by the drafter's config; vLLM refuses to start "
        "without it.",
        do="Set num_speculative_tokens.",
        reports=(_CONFIG,),
    ),
    Entry(
        code="n_predict_indivisible",
        severity="error",
        happens="{tokens} speculative tokens are not divisible by the {depth} that the MTP layers predict; vLLM refuses to "
        "start.",
        do="Use a multiple of {depth}.",
        reports=(_CONFIG,),
    ),
    Entry(
        code="extract_tokens_not_one",
        severity="error",
        happens="extract_hidden_states with num_speculative_tokens {tokens}; vLLM accepts only 1.",
        do="Set num_speculative_tokens to 1.",
        reports=(_CONFIG,),
    ),
    Entry(
        code="block_size_mismatch",
        severity="warning",
        evidence="reported",
        contested=True,
        rows=("S6", "S7"),
        happens="num_speculative_tokens {tokens} differs from the drafter's block size {block}: a smaller number works for "
        "some and is refused by some versions, a larger one made acceptance collapse in one report.",
        do="Use {block} unless you have measured another number.",
        reports=("vllm-project/vllm/issues/50012", "vllm-project/vllm/pull/41834"),
    ),
    Entry(
        code="draft_tp_unsupported",
        severity="error",
        happens="Draft tensor parallelism {draft} is neither 1 nor the target's {target}; vLLM refuses to start.",
        do="Use 1 or {target}.",
        reports=(_CONFIG,),
    ),
    Entry(
        code="shared_embeddings_not_on_draft_stage",
        severity="warning",
        evidence="reported",
        rows=("B7",),
        happens="The draft runs on the last pipeline stage, where the target's embedding is not; shared embeddings are not "
        "available there, and versions without the fix draft from uninitialised weights.",
        do="Use a version that makes the draft load its own embedding, and check acceptance after start.",
        reports=("vllm-project/vllm/pull/46994",),
    ),
    Entry(
        code="pp_runtime_deadlock",
        severity="warning",
        evidence="reported",
        rows=("B9",),
        happens="A deadlock in the broadcast of sampled tokens was reported for DSpark with pipeline parallelism; it has "
        "nothing to do with loading, and this check cannot exclude it.",
        do="Try the pair under load before the roll-out, or use tensor parallelism alone.",
        reports=("vllm-project/vllm/issues/53402",),
    ),
    Entry(
        code="aux_over_pp_unsupported",
        severity="warning",
        happens="Not every target class can pass captured layers between pipeline stages; vLLM refuses {method} with "
        "pipeline parallelism for those that can't.",
        do="Check that the target's class supports it, or use tensor parallelism alone.",
        reports=(_CONFIG,),
    ),
    Entry(
        code="pp_unsupported",
        severity="error",
        happens="{engine} does not run {method} with pipeline parallelism; the server stops at start.",
        do="Use pipeline_parallel_size 1.",
    ),
    Entry(
        code="engine_assumed",
        severity="info",
        rows=("A11",),
        evidence="reported",
        happens="No engine version was named; the answer holds for {engine}, the newest known.",
        do="Name the engine and its version: the same config has different truths in different versions.",
        reports=("vllm-project/vllm/issues/42004",),
    ),
    Entry(
        code="engine_version_unknown",
        severity="info",
        rows=("A11",),
        evidence="inferred",
        happens="What {engine} does in some of these points is not established.",
        do="Read unknown parts of the answer as unknown.",
        reports=("vllm-project/vllm/issues/42004",),
    ),
)
