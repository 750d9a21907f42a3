"""Wide residuals: all streams before the head that joins them, for drafters that read them (MTP of DeepSeek V4, Qwen4).

**Unproven**: written against the classes of vLLM 0.33 and tested with a stand-in; nobody has run it on such a target.

vLLM's own export cannot give them. Targets with ``get_mtp_target_hidden_states`` keep the step's rows in a buffer when
the speculative method reads it (``mtp``; for DeepSeek V4 also eagle, eagle3, dflash, dspark): row i belongs to token i of
the step, and the next step overwrites it. So a prompt's rows can be had where one step computes all of it: prompts in
chunks and prompts with a cached prefix are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...drafting.hidden_states import get_drafter_hidden_states
from ...transport.messages import HiddenStatesLayout
from .step import Prompt

if TYPE_CHECKING:
    import torch

WORKER_CLASS = "app.integrations.vllm.wide_worker.WideResidualWorker"
_target: list[Any] = []  # the model of this process, noted by WideResidualWorker


def note_target(model: Any) -> None:
    """Called with the model once it is loaded."""
    _target[:] = [model]


def noted_target() -> Any:
    """The model.

    Raises:
        ValueError: nobody noted it: vLLM runs with another worker class.
    """
    if not _target:
        raise ValueError(
            f"capture pre_hc_head needs the target itself: start vLLM with --worker-cls {WORKER_CLASS}"
        )
    return _target[0]


class WideSource:
    """The buffer of a target.

    Args:
        model: vLLM's target.

    Raises:
        ValueError: it keeps no such buffer, for it has none or the speculative method does not read it.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._starts: dict[str, int] = {}
        buffer = self._buffer(0)
        if buffer is None:
            raise ValueError(
                "the target keeps no state before the head that joins its streams: set capture to aux_layers, or the "
                "speculative method to the one that reads it (mtp)"
            )
        self.device = buffer.device
        self.layout = HiddenStatesLayout(
            source="pre_hc_head",
            layer_ids=None,
            capture_points=None,
            norm="pre",
            width=buffer.shape[1],
            dtype=str(buffer.dtype).removeprefix("torch."),
            bytes_per_token=buffer.shape[1] * buffer.element_size(),
            rows=0,
            buffer_bytes=0,
        )

    def note_step(self, scheduled: Any, request_ids: Sequence[str]) -> None:
        """Notes at which token of the step each request begins: vLLM's V2 runner says in which order it took them."""
        self._starts = {}
        start = 0
        for req_id in request_ids:
            self._starts[req_id] = start
            start += scheduled.num_scheduled_tokens[req_id]

    def write(self, prompt: Prompt, rows: torch.Tensor) -> None:
        """See ``RowSource``; after the target's forward, before the next.

        Raises:
            LookupError: the order of this step's requests is not known (vLLM's V1 runner does not tell it).
        """
        start = self._starts[prompt.req_id]
        buffer = self._buffer(start + rows.shape[0])
        if buffer is None or buffer.shape[0] < start + rows.shape[0]:
            raise LookupError("the target's buffer is shorter than the step")
        rows.copy_(buffer[start:])

    def _buffer(self, num_tokens: int) -> torch.Tensor | None:
        import torch  # noqa: PLC0415 - the engine has loaded it

        output = torch.empty(num_tokens, 0)
        rows = get_drafter_hidden_states(self._model, output)
        return None if rows is output else rows
