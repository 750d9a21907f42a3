"""Checks of a step's rows and tokens, of parallelism, and of what is known about the engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from .budget import Budget, fills_blocks
from .catalogue import finding
from .engine_buffers import BLOCK_METHODS, ROWS_ARE_K_PLUS_ONE, refuses_pipeline
from .engines import behaviour
from .findings import Finding
from .pair import Pair, block_size, mtp_depth
from .placement import has_weights
from .plan_hidden_states import PlannedHiddenStates
from .shapes import lookup

# Drafters that take the target's embedding unless they bring their own.
_SHARE_EMBEDDINGS: Final = frozenset({"mtp", "eagle", "eagle3", "peagle"}) | BLOCK_METHODS
_OWN_EMBEDDINGS: Final = ("has_embed_tokens", "mtp_use_dedicated_embeddings")


def step_findings(pair: Pair, budget: Budget) -> Iterator[Finding]:
    """All findings about rows and tokens."""
    yield from _tokens(pair)
    if pair.method is None:
        return
    yield from _incomplete(pair, budget)
    yield from _rows(pair, budget)
    yield from _scheduler(budget)


def parallel_findings(pair: Pair, hidden: PlannedHiddenStates | None) -> Iterator[Finding]:
    """All findings about process groups."""
    parallel = pair.request.parallel
    draft, target = parallel.draft_tensor_parallel_size, parallel.tensor_parallel_size
    if draft is not None and draft not in {1, target} and pair.engine.name == "vllm":
        yield finding(
            "draft_tp_unsupported", "parallel.draft_tensor_parallel_size", draft=draft, target=target
        )
    if parallel.pipeline_parallel_size <= 1 or pair.method is None or not has_weights(pair.method):
        return
    field = "parallel.pipeline_parallel_size"
    if refuses_pipeline(pair.method, pair.engine) is not None:
        yield finding("pp_unsupported", field, engine=str(pair.engine), method=pair.method)
    if pair.engine.name != "vllm":
        return
    if pair.method in _SHARE_EMBEDDINGS and not any(
        lookup(pair.draft, key) is True for key in _OWN_EMBEDDINGS
    ):
        yield finding("shared_embeddings_not_on_draft_stage", field)
    if pair.method == "dspark":
        yield finding("pp_runtime_deadlock", field)
    if hidden is not None and hidden.source == "aux_layers":
        yield finding("aux_over_pp_unsupported", field, method=pair.method)


def engine_findings(pair: Pair) -> Iterator[Finding]:
    """What the answer rests on."""
    if pair.request.engine is None or pair.request.engine.version is None:
        yield finding("engine_assumed", "engine", engine=str(pair.engine))
    elif behaviour(pair.engine).methods is None:
        yield finding("engine_version_unknown", "engine", engine=str(pair.engine))


def _tokens(pair: Pair) -> Iterator[Finding]:
    tokens = pair.num_speculative_tokens
    if tokens is None:
        if pair.method is not None:
            yield finding("num_speculative_tokens_missing", "num_speculative_tokens")
        return
    if pair.method == "extract_hidden_states" and tokens != 1:
        yield finding("extract_tokens_not_one", "num_speculative_tokens", tokens=tokens)
    depth = mtp_depth(pair.draft) if pair.method == "mtp" else None
    if depth is not None and tokens > depth and tokens % depth:
        yield finding(
            "n_predict_indivisible",
            "num_speculative_tokens",
            "num_nextn_predict_layers",
            tokens=tokens,
            depth=depth,
        )
    block = block_size(pair.draft) if pair.method in BLOCK_METHODS else None
    if block is not None and tokens not in _block_tokens(pair, block):
        yield finding(
            "block_size_mismatch", "num_speculative_tokens", "block_size", tokens=tokens, block=block
        )


def _block_tokens(pair: Pair, block: int) -> set[int]:
    """DSpark drafts a token in every place of its block; DFlash's first place is the token before."""
    anchored = lookup(pair.draft, "sample_from_anchor") is False
    return {block} if pair.method == "dspark" and not anchored else {block, block - 1}


def _incomplete(pair: Pair, budget: Budget) -> Iterator[Finding]:
    missing = [
        name
        for name in ("num_speculative_tokens", "max_num_seqs", "max_num_batched_tokens")
        if getattr(budget, name) is None
    ]
    if missing:
        yield finding("budget_incomplete", *missing, missing=f"{', '.join(missing)} not given")
    elif pair.engine.name not in ROWS_ARE_K_PLUS_ONE:
        yield finding(
            "budget_incomplete", "engine", missing=f"the arithmetic of {pair.engine} is not established"
        )
    elif budget.extra_slots_per_request is None:
        yield finding("extra_slots_unknown", "engine", engine=str(pair.engine), method=pair.method)


def _rows(pair: Pair, budget: Budget) -> Iterator[Finding]:
    required, padded, available = budget.required_rows, budget.padded_rows, budget.max_num_batched_tokens
    if required is None or available is None:
        return
    fields = ("max_num_batched_tokens", "max_num_seqs", "num_speculative_tokens")
    if required > available:
        blocks = fills_blocks(pair.method or "")
        yield finding(
            "rows_exceed_buffer",
            *fields,
            severity="error" if blocks else "warning",
            required=required,
            available=available,
            seqs=budget.max_num_seqs,
            per_request=budget.rows_per_request,
            consequence=(
                ", and the drafter's rows do not count towards the scheduler's limit: it gathers out of bounds"
                if blocks
                else "; fewer requests fit into a step than max_num_seqs says"
            ),
        )
    if padded is not None and padded != required:
        yield finding(
            "rows_padded_for_graphs",
            *fields,
            severity="warning" if required <= available < padded else "info",
            required=required,
            padded=padded,
        )


def _scheduler(budget: Budget) -> Iterator[Finding]:
    left, slots, seqs = budget.scheduled_token_budget, budget.extra_slots_per_request, budget.max_num_seqs
    if left is None or left > 0 or slots is None or seqs is None:
        return
    yield finding(
        "negative_token_budget",
        "max_num_batched_tokens",
        "max_num_seqs",
        "num_speculative_tokens",
        severity="error" if budget.evidence == "read in code" else "warning",
        budget=left,
        available=budget.max_num_batched_tokens,
        slots=slots,
        seqs=seqs,
        kept=slots * seqs,
    )
