"""Where a prompt's rows come from: vLLM's paged cache of hidden states, unless the target keeps wider ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ...transport.messages import HiddenStatesLayout
from .step import Prompt

if TYPE_CHECKING:
    import torch


class RowSource(Protocol):
    """Gives rows.

    Attributes:
        device: where they are.
        layout: what one of them holds; ``rows`` is to be filled in.
    """

    device: torch.device
    layout: HiddenStatesLayout

    def note_step(self, scheduled: Any, request_ids: Sequence[str]) -> None:
        """Tells which requests a step has, in the order of their tokens."""

    def write(self, prompt: Prompt, rows: torch.Tensor) -> None:
        """Fills ``rows`` (``[num_tokens, width]``) on the current stream."""


class CacheSource:
    """The cache ``[blocks, layers, tokens of a block, hidden]``, whose layers vLLM keeps sorted.

    Args:
        cache: vLLM's tensor.
        points: capture points in the order asked for.
        positions: for each of them, where the cache has it.
    """

    def __init__(self, cache: torch.Tensor, points: Sequence[int], positions: Sequence[int]) -> None:
        _blocks, layers, self.block_size, self._hidden = cache.shape
        if sorted(positions) != list(range(layers)):
            raise ValueError(f"the cache has {layers} layers, {len(positions)} were asked for")
        self.device = cache.device
        self._cache = cache
        self._positions = tuple(positions)
        width = layers * self._hidden
        self.layout = HiddenStatesLayout(
            source="aux_layers",
            layer_ids=list(points),
            capture_points=list(points),
            norm="pre",
            width=width,
            dtype=str(cache.dtype).removeprefix("torch."),
            bytes_per_token=width * cache.element_size(),
            rows=0,
            buffer_bytes=0,
        )

    def note_step(self, scheduled: Any, request_ids: Sequence[str]) -> None:
        """The cache needs to know nothing of it."""

    def write(self, prompt: Prompt, rows: torch.Tensor) -> None:
        """See ``RowSource``."""
        import torch  # noqa: PLC0415 - the engine has loaded it

        num_tokens = rows.shape[0]
        full, rest = divmod(num_tokens, self.block_size)
        index = torch.tensor(prompt.block_ids, dtype=torch.long)
        if self.device.type != "cpu":
            index = index.pin_memory().to(self.device, non_blocking=True)
        gathered = self._cache.index_select(0, index)
        by_layer = rows.view(num_tokens, len(self._positions), self._hidden)
        whole = by_layer[: full * self.block_size].unflatten(0, (full, self.block_size))
        for column, position in enumerate(self._positions):
            whole[:, :, column].copy_(gathered[:full, position])
            if rest:
                by_layer[full * self.block_size :, column].copy_(gathered[full, position, :rest])
