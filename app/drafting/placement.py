"""Where the drafter lives in a parallel engine, and what follows from it."""

from __future__ import annotations

from msgspec import Struct

# Methods that have no weights of their own to place.
_WEIGHTLESS = frozenset({"ngram", "suffix", "extract_hidden_states"})
_MOST_RANKS = 65536


class Parallel(Struct, frozen=True):
    """Sizes of the engine's process groups; the draft's tensor parallelism is 1 or the target's."""

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    draft_tensor_parallel_size: int | None = None


class Placement(Struct, frozen=True):
    """Which processes hold the drafter.

    Attributes:
        draft_stage: pipeline stage, counted from 0; always the last one. ``None``: there is nothing to place.
        draft_ranks: global ranks; rank = stage x tensor_parallel_size + rank within the stage.
        target_ranks: number of ranks that hold the target.
    """

    draft_stage: int | None
    draft_ranks: tuple[int, ...] | None
    target_ranks: int


def has_weights(method: str) -> bool:
    """Whether the method has a drafter with weights of its own."""
    return method not in _WEIGHTLESS


def place(method: str | None, parallel: Parallel) -> Placement:
    """Places the drafter: vLLM builds it on the last pipeline stage only, on every tensor-parallel rank there.

    With a draft tensor parallelism of 1 each of these ranks holds a drafter of its own.
    Source: vLLM 0.33: vllm/v1/worker/gpu/model_runner.py; rank order: vllm/distributed/parallel_state.py.
    """
    tensor, pipeline = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
    ranks = tensor * pipeline
    if method is None or not has_weights(method) or ranks < 1 or ranks > _MOST_RANKS:
        return Placement(None, None, ranks)
    first = (pipeline - 1) * tensor
    return Placement(pipeline - 1, tuple(range(first, first + tensor)), ranks)
