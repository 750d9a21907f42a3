"""Which prompts of a step share a forward: right-padded groups of similar length.

Padding after a prompt can't reach its rows in a causal model, so groups need no attention mask, which keeps the
fastest attention kernels. Packing prompts into one long row would need a block mask of the whole step and separate
handling of every recurrent or convolutional layer.
"""

from __future__ import annotations


def group_prompts(lengths: list[int], forward_cost: int, max_tokens: int) -> list[list[int]]:
    """Splits the indices of prompts into groups, longest first.

    A group ends where one more prompt would bring its padding above ``forward_cost``, the cost in tokens of another
    forward: neither padding nor the number of forwards is ever much more than needed. No forward is larger than
    ``max_tokens``, padding included, which bounds the memory of activations.
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    groups: list[list[int]] = []
    padding = 0
    for index in order:
        if groups:
            longest = lengths[groups[-1][0]]
            waste = longest - lengths[index]
            if padding + waste <= forward_cost and longest * (len(groups[-1]) + 1) <= max_tokens:
                groups[-1].append(index)
                padding += waste
                continue
        groups.append([index])
        padding = 0
    return groups


def group_equal_lengths(lengths: list[int], max_tokens: int) -> list[list[int]]:
    """As ``group_prompts`` for models that padding would change: only prompts of one length share a forward."""
    return group_prompts(lengths, 0, max_tokens)


def padded_tokens(lengths: list[int], groups: list[list[int]]) -> int:
    """Tokens that the forwards of these groups compute, padding included."""
    return sum(len(group) * lengths[group[0]] for group in groups)
