"""Finds out, on the loaded model, whether prompts of different lengths may share a forward.

A rule by architecture would miss the models that nobody thought of (bidirectional attention, say), so two tiny
forwards tell. They also warm the model up and show that capture works before anybody waits for rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch

if TYPE_CHECKING:
    Run: TypeAlias = Callable[[list[list[int]]], list[torch.Tensor]]

Batching: TypeAlias = Literal["padded", "equal_lengths", "lone"]

_LENGTH = 32
# Half of the rows must agree to this, relative to the row's norm. Rounding stays far below, even through many layers;
# attention to what follows stays far above. Half, because a mixture of experts may flip a token at a boundary.
_TOLERANCE = {torch.float32: 1e-3, torch.float16: 0.1, torch.bfloat16: 0.1}


def probe_batching(run: Run, vocab_size: int, max_prompt_tokens: int) -> Batching:
    """What keeps each prompt's rows those of its lone forward: padding, only equal lengths, or one prompt at a time.

    Args:
        run: runs prompts in one forward, longest first, and returns each one's rows.
        vocab_size: ids are drawn below this.
        max_prompt_tokens: no prompt is longer.
    """
    length = min(_LENGTH, max_prompt_tokens)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(vocab_size, (2, length), generator=generator).tolist()
    short = ids[0][: max(1, length // 2)]
    [lone], [lone_short] = run([ids[0]]), run([short])
    together = run([ids[1], ids[0]])
    if not _agree(together[1], lone):
        return "lone"
    padded = run([ids[1], short])
    return "padded" if _agree(padded[1], lone_short) else "equal_lengths"


def _agree(rows: torch.Tensor, expected: torch.Tensor) -> bool:
    difference = (rows - expected).float().norm(dim=-1) / expected.float().norm(dim=-1).clamp_min(1e-30)
    return bool(difference.median() <= _TOLERANCE[rows.dtype])
