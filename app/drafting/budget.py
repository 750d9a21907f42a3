"""Rows and tokens of a step: whether the engine's buffers and its scheduler have room for drafting."""

from __future__ import annotations

from msgspec import Struct

from .engine_buffers import BLOCK_METHODS, ROWS_ARE_K_PLUS_ONE, extra_slots
from .engines import EngineRef
from .findings import Evidence
from .shapes import product

# vLLM's default capture sizes: every 8 up to 256, every 16 up to 512, nothing is padded above.
_FINE_STEP, _FINE_END, _COARSE_STEP, _LARGEST_GRAPH = 8, 256, 16, 512
_SMALL_GRAPHS = (1, 2, 4)


class Budget(Struct, frozen=True, kw_only=True):
    """What one step needs and has; ``None`` where an input or the engine's rule is unknown.

    Attributes:
        required_rows: ``max_num_seqs`` x ``rows_per_request``, unpadded.
        rows_per_request: rows of one request in a decode step: K drafts and the token before them.
        padded_rows: ``required_rows`` rounded up to the next size for which a graph is captured by default.
        max_num_batched_tokens: rows that the engine's buffers hold.
        max_num_seqs: requests in a step.
        num_speculative_tokens: K, as requested or as the engine defaults it from the config.
        extra_slots_per_request: tokens per request that the scheduler keeps free for the drafter.
        scheduled_token_budget: ``max_num_batched_tokens - extra_slots_per_request x max_num_seqs``.
        evidence: how ``extra_slots_per_request`` is known.
        source: where it can be checked.
    """

    required_rows: int | None = None
    rows_per_request: int | None = None
    padded_rows: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    num_speculative_tokens: int | None = None
    extra_slots_per_request: int | None = None
    scheduled_token_budget: int | None = None
    evidence: Evidence | None = None
    source: str | None = None


def rows_per_request(engine: EngineRef, num_speculative_tokens: int | None) -> int | None:
    """Rows of one request in a full decode step, ``None`` where K or the engine's arithmetic is unknown.

    Every method verifies K drafts plus one token; no drafter's own pass has more rows than that.
    """
    if num_speculative_tokens is None or engine.name not in ROWS_ARE_K_PLUS_ONE:
        return None
    return num_speculative_tokens + 1


def padded_to_graph(rows: int) -> int:
    """``rows`` rounded up to vLLM's next default capture size; beyond the largest graph nothing is padded."""
    for size in _SMALL_GRAPHS:
        if rows <= size:
            return size
    if rows > _LARGEST_GRAPH:
        return rows
    step = _FINE_STEP if rows <= _FINE_END else _COARSE_STEP
    return -(-rows // step) * step


def make_budget(
    method: str,
    engine: EngineRef,
    *,
    num_speculative_tokens: int | None,
    max_num_batched_tokens: int | None,
    max_num_seqs: int | None,
) -> Budget:
    """The arithmetic of a step for one method on one engine version."""
    per_request = rows_per_request(engine, num_speculative_tokens)
    required = product(max_num_seqs, per_request)
    known = extra_slots(method, engine)
    slots = None
    if known is not None and num_speculative_tokens is not None:
        slots = known.value.per_request(num_speculative_tokens)
    kept_free = product(slots, max_num_seqs)
    left = None
    if max_num_batched_tokens is not None and kept_free is not None:
        left = max_num_batched_tokens - kept_free
    return Budget(
        required_rows=required,
        rows_per_request=per_request,
        padded_rows=padded_to_graph(required) if required is not None else None,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
        num_speculative_tokens=num_speculative_tokens,
        extra_slots_per_request=slots,
        scheduled_token_budget=left,
        evidence=known.value.evidence if known is not None and slots is not None else None,
        source=known.source if known is not None and slots is not None else None,
    )


def fills_blocks(method: str) -> bool:
    """Whether the drafter's rows come on top of what the scheduler counted."""
    return method in BLOCK_METHODS
