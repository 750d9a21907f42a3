"""What the worker knows of its model: a plan made from small files, then the loaded target that runs prompts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from ..drafting.layout import CaptureLayout
from ..transport.messages import TargetDescription
from .checkpoint import Checkpoint

if TYPE_CHECKING:
    import torch

ProgressCallback: TypeAlias = Callable[[int, int], None]


class Target(Protocol):
    """A loaded model. One thread at a time may call ``run_step``; ``encode`` and ``step_tokens`` may be called by any.

    Attributes:
        description: the model as ``GET /v1/target`` shows it.
        max_prompt_tokens: longest prompt that the model has positions for, at most ``max_num_batched_tokens``.
    """

    description: TargetDescription
    max_prompt_tokens: int

    def step_tokens(self, lengths: list[int]) -> int:
        """Cost, in tokens of forward work, of running prompts of these lengths in one step (padding included).

        Never more for one prompt than its length, so whatever fits ``max_num_batched_tokens`` alone can be run.
        """
        ...

    def run_step(self, prompts: list[list[int]], rows: list[torch.Tensor]) -> None:
        """Runs prompts and writes what is captured of prompt i into ``rows[i]``.

        Args:
            prompts: token ids, each prompt 1 to ``max_prompt_tokens`` long and each id inside the vocabulary.
            rows: per prompt a ``[num_tokens, width]`` tensor of the description's dtype on the target's device.

        Returns when the device has finished writing.
        """
        ...

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Token ids of texts, with the special tokens that the tokenizer adds by default.

        Raises:
            TargetError: ``tokenizer_missing``: the target has no tokenizer.
        """
        ...


@dataclass(frozen=True)
class TargetPlan:
    """A target that was found, checked and not yet loaded.

    Attributes:
        description: the model as ``GET /v1/target`` shows it.
        layout: what is captured, from ``app.drafting.layout``.
        checkpoint: the files it will be loaded from.
        row_bytes: bytes of one captured row.
        width: elements of one captured row.
        dtype: dtype of the weights and of the rows, e.g. ``bfloat16``.
        device: ``cpu`` or ``cuda:N``.
        weight_bytes: memory that the weights will take on the device, as far as the files tell.
        max_prompt_tokens: longest prompt that can be run.
    """

    description: TargetDescription
    layout: CaptureLayout
    checkpoint: Checkpoint
    row_bytes: int
    width: int
    dtype: str
    device: str
    weight_bytes: int
    max_prompt_tokens: int

    def load(self, progress: ProgressCallback) -> Target:
        """Reads the weights. ``progress(bytes_read, bytes_total)`` is called as they come, from several threads.

        Raises:
            TargetError: ``target_invalid``, ``target_unsupported``, ``layout_unsupported``, ``out_of_memory``.
        """
        from .load_target import load_target  # noqa: PLC0415 - brings torch and transformers, seconds of start-up

        return load_target(self, progress)
