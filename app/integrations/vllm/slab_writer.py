"""Copies a prompt's rows from vLLM's paged cache of hidden states into a slot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class SlabWriter:
    """Reads the cache ``[blocks, layers, tokens of a block, hidden]``, whose layers vLLM keeps sorted.

    Args:
        cache: vLLM's tensor.
        positions: for each layer of a row, in the row's order, where the cache has it.
    """

    def __init__(self, cache: torch.Tensor, positions: Sequence[int]) -> None:
        _blocks, layers, self.block_size, self._hidden = cache.shape
        if sorted(positions) != list(range(layers)):
            raise ValueError(f"the cache has {layers} layers, {len(positions)} were asked for")
        self._cache = cache
        self._positions = tuple(positions)

    def write(self, block_ids: Sequence[int], rows: torch.Tensor) -> None:
        """Fills ``rows`` (``[num_tokens, layers x hidden]``) from its prompt's blocks, on the current stream."""
        import torch  # noqa: PLC0415 - the engine has loaded it

        num_tokens = rows.shape[0]
        full, rest = divmod(num_tokens, self.block_size)
        index = torch.tensor(block_ids, dtype=torch.long)
        if self._cache.device.type != "cpu":
            index = index.pin_memory().to(self._cache.device, non_blocking=True)
        gathered = self._cache.index_select(0, index)
        by_layer = rows.view(num_tokens, len(self._positions), self._hidden)
        whole = by_layer[: full * self.block_size].unflatten(0, (full, self.block_size))
        for column, position in enumerate(self._positions):
            whole[:, :, column].copy_(gathered[:full, position])
            if rest:
                by_layer[full * self.block_size :, column].copy_(gathered[full, position, :rest])
