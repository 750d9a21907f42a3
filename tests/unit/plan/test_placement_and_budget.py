"""Ranks and rows."""

import pytest

from app.drafting.budget import make_budget, padded_to_graph
from app.drafting.engines import EngineRef
from app.drafting.placement import Parallel, place


@pytest.mark.parametrize(
    ("parallel", "stage", "ranks"),
    [
        (Parallel(), 0, (0,)),
        (Parallel(8, 2), 1, tuple(range(8, 16))),
        (Parallel(1, 4), 3, (3,)),
        (Parallel(4, 2, 1), 1, (4, 5, 6, 7)),
    ],
)
def test_the_draft_is_on_every_rank_of_the_last_stage(parallel, stage, ranks):
    placement = place("dflash", parallel)
    assert (placement.draft_stage, placement.draft_ranks) == (stage, ranks)
    assert placement.target_ranks == parallel.tensor_parallel_size * parallel.pipeline_parallel_size


@pytest.mark.parametrize("method", ["ngram", "suffix", "extract_hidden_states", None])
def test_methods_without_weights_are_nowhere(method):
    assert place(method, Parallel(2, 2)).draft_ranks is None


def test_absurd_sizes_make_no_list_of_ranks():
    assert place("mtp", Parallel(10**9, 10**9)).draft_ranks is None


@pytest.mark.parametrize(
    ("rows", "padded"), [(1, 1), (3, 4), (5, 8), (132, 136), (256, 256), (257, 272), (512, 512), (513, 513)]
)
def test_rows_are_padded_to_the_next_captured_size(rows, padded):
    assert padded_to_graph(rows) == padded


@pytest.mark.parametrize(
    ("method", "version", "tokens", "slots"),
    [
        ("dflash", "0.33.0", 16, 0),
        ("dflash", "0.32.0", 16, 16),
        ("dflash", "0.26.0", 16, 15),
        ("dflash", "0.29.0", 16, None),
        ("dflash", "0.99.0", 16, None),
        ("dspark", "0.32.0", 7, 6),
        ("dspark", "0.26.0", 7, None),
        ("peagle", "0.33.0", 7, 6),
        ("pard", "0.33.0", 7, 7),
        ("draft_model", "0.33.0", 7, 1),
        ("eagle3", "0.33.0", 7, 0),
    ],
)
def test_extra_slots_by_version(method, version, tokens, slots):
    budget = make_budget(
        method,
        EngineRef("vllm", version),
        num_speculative_tokens=tokens,
        max_num_batched_tokens=2048,
        max_num_seqs=256,
    )
    assert budget.extra_slots_per_request == slots
    assert budget.scheduled_token_budget == (None if slots is None else 2048 - 256 * slots)
    assert (budget.source is None) == (slots is None)
    assert budget.required_rows == 256 * (tokens + 1)


@pytest.mark.parametrize("missing", ["num_speculative_tokens", "max_num_batched_tokens", "max_num_seqs"])
def test_a_missing_input_leaves_a_gap(missing):
    inputs = {"num_speculative_tokens": 3, "max_num_batched_tokens": 100, "max_num_seqs": 4} | {missing: None}
    budget = make_budget("mtp", EngineRef("vllm", "0.33.0"), **inputs)
    assert getattr(budget, missing) is None
    assert budget.scheduled_token_budget is None
    assert (budget.required_rows is None) == (missing != "max_num_batched_tokens")


def test_sglangs_arithmetic_is_not_claimed():
    budget = make_budget(
        "eagle3",
        EngineRef("sglang", "0.5.23"),
        num_speculative_tokens=3,
        max_num_batched_tokens=1,
        max_num_seqs=1,
    )
    assert budget.required_rows is None
    assert budget.extra_slots_per_request is None
