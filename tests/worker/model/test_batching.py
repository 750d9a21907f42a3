"""Groups of prompts that share a forward."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.worker.batching import group_equal_lengths, group_prompts, padded_tokens

LENGTHS = st.lists(st.integers(1, 64), max_size=40)


@given(LENGTHS, st.integers(0, 200), st.integers(64, 300))
def test_every_prompt_is_in_one_group_and_no_group_is_too_large(lengths, forward_cost, max_tokens):
    groups = group_prompts(lengths, forward_cost, max_tokens)

    assert sorted(index for group in groups for index in group) == list(range(len(lengths)))
    for group in groups:
        sizes = [lengths[index] for index in group]
        assert sizes == sorted(sizes, reverse=True)
        assert len(group) * sizes[0] <= max_tokens
        assert len(group) * sizes[0] - sum(sizes) <= forward_cost


@given(LENGTHS)
def test_equal_lengths_never_pad(lengths):
    groups = group_equal_lengths(lengths, 10_000)

    assert padded_tokens(lengths, groups) == sum(lengths)
    assert len(groups) == len(set(lengths))


@given(st.integers(1, 64), st.integers(0, 200))
def test_one_prompt_costs_its_length(length, forward_cost):
    assert padded_tokens([length], group_prompts([length], forward_cost, 64)) == length
