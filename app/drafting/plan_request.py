"""What a drafting plan is made from: two configs that somebody has read already, and what the server will be told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from .engines import EngineRef
from .load_config import LoadConfig
from .placement import Parallel


class PlanRequest(Struct, frozen=True, kw_only=True):
    """The question.

    Attributes:
        target_config: the target's ``config.json``, ``None`` when it is not at hand.
        draft_config: the drafter's, ``None`` when the drafter lives in the target (MTP layers, bundled DSpark) or is
            no model at all.
        target_name: hub id or path of the target.
        draft_name: hub id or path of the draft: vLLM reads the method off it before it looks at the config.
        method: what the engine is told, a family or an engine's own name for it; ``None``: it has to find out.
        num_speculative_tokens: K, at least 1.
        max_num_batched_tokens: tokens of a step.
        max_num_seqs: requests in a step.
        load_config: the target's; ``None``: the engine's default.
        draft_load_config: the speculative config's own, if any.
        parallel: sizes of the process groups.
        dtype: ``--dtype``; ``None`` or ``auto``: the target config's.
        engine: ``None``: the newest vLLM that is known here.
        enable_prefix_caching: ``None``: the engine's default, which is on.
        trained_mask_token_id: from the training run, to compare with what the config declares.
        token_text: gives the text of a token id, where a tokenizer is at hand.
        duplicate_keys: keys that the drafter's file names twice.
    """

    target_config: Mapping[str, Any] | None = None
    draft_config: Mapping[str, Any] | None = None
    target_name: str | None = None
    draft_name: str | None = None
    method: str | None = None
    num_speculative_tokens: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    load_config: LoadConfig | None = None
    draft_load_config: LoadConfig | None = None
    parallel: Parallel = Parallel()
    dtype: str | None = None
    engine: EngineRef | None = None
    enable_prefix_caching: bool | None = None
    trained_mask_token_id: int | None = None
    token_text: Callable[[int], str | None] | None = None
    duplicate_keys: tuple[str, ...] = ()
