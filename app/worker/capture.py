"""Hooks that write captured hidden states straight into the slab's rows, column block by column block."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .decoder import decoder_layers_of, stream_head_of

if TYPE_CHECKING:
    import torch
    from torch import nn

    from ..drafting.layout import CaptureLayout


class ForwardDone(Exception):  # noqa: N818 - no error: it ends a forward whose remaining layers nobody needs
    """Everything that was asked for has been captured."""


class AuxLayerCapture:
    """Captures the residual stream at capture points; point n is the last layer's output, before the final norm.

    Targets with parallel residual streams (``[batch, token, stream, hidden]``) give the mean over the streams, as
    vLLM's DeepSeek V4 does for its drafters.
    """

    def __init__(self, model: nn.Module, layout: CaptureLayout, streams: int | None) -> None:
        points = layout.capture_points or ()
        layers = decoder_layers_of(model, layout.num_layers)
        self._hidden_size = layout.hidden_size
        self._streams = streams
        self._rows: list[torch.Tensor] = []
        self._unwritten: set[int] = set()
        self._blocks = frozenset(range(len(points)))
        last = max(points)
        for block, point in enumerate(points):
            if point == layout.num_layers:
                layers[point - 1].register_forward_hook(self._output_hook(block), with_kwargs=True)
            else:
                stop = point == last
                layers[point].register_forward_pre_hook(self._input_hook(block, stop=stop), with_kwargs=True)

    def begin(self, rows: list[torch.Tensor]) -> None:
        """The next forward's batch item i goes to ``rows[i]``."""
        self._rows = rows
        self._unwritten = set(self._blocks)

    def end(self) -> None:
        """Forgets the rows; ``RuntimeError`` when the model passed a capture point by."""
        self._rows = []
        if self._unwritten:
            raise RuntimeError("the model ran without some of the layers that are to be captured")

    def _input_hook(self, block: int, *, stop: bool) -> Callable[..., None]:
        def hook(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._write(block, args[0] if args else kwargs["hidden_states"])
            if stop:
                raise ForwardDone

        return hook

    def _output_hook(self, block: int) -> Callable[..., None]:
        def hook(_module: Any, _args: Any, _kwargs: Any, output: Any) -> None:
            self._write(block, output[0] if isinstance(output, tuple) else output)

        return hook

    def _write(self, block: int, stream: torch.Tensor) -> None:
        self._unwritten.discard(block)
        self._check(stream)
        columns = slice(block * self._hidden_size, (block + 1) * self._hidden_size)
        for index, rows in enumerate(self._rows):
            tokens = stream[index, : rows.shape[0]]
            rows[:, columns].copy_(tokens.mean(dim=-2) if tokens.dim() == 3 else tokens)

    def _check(self, stream: torch.Tensor) -> None:
        """Refuses a residual stream of a shape whose meaning is unknown here, rather than capture something else."""
        known = {(self._hidden_size,), (self._streams, self._hidden_size)}
        if stream.shape[0] != len(self._rows) or tuple(stream.shape[2:]) not in known:
            raise RuntimeError(
                f"the layers' input has the shape {tuple(stream.shape)}, which is not understood"
            )


class StreamCapture:
    """Keeps the residual streams that enter the head which joins them, flattened to one row per token."""

    def __init__(self, model: nn.Module) -> None:
        self._rows: torch.Tensor | None = None
        stream_head_of(model).register_forward_pre_hook(self._hook, with_kwargs=True)

    def rows(self) -> torch.Tensor | None:
        """``[batch x token, streams x hidden]`` of the forward just run, ``None`` outside one."""
        return self._rows

    def end(self) -> None:
        """Forgets the forward, whose memory is the model's."""
        self._rows = None

    def _hook(self, _module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        streams = args[0] if args else next(iter(kwargs.values()))
        self._rows = streams.reshape(streams.shape[0] * streams.shape[1], -1)
