"""The loaded target: batches prompts, runs forwards without a KV cache, captures into the rows it is given.

Each prompt's rows equal those of a forward of that prompt alone within the rounding of the dtype, because different
batch shapes take different matrix kernels. Largest difference relative to the largest element, measured over the
architectures of the parity test: float32 1e-5, float16 1e-2, bfloat16 5e-2 (a mixture of experts may send a token
that sits on the boundary between two experts to the other one; that is a property of the model, not of the batch).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch

from ..drafting.hidden_states import get_drafter_hidden_states
from .batching import group_prompts, padded_tokens
from .capture import AuxLayerCapture, ForwardDone, StreamCapture
from .decoder import text_model_of
from .target_error import TargetError
from .tokenize import encode_texts

if TYPE_CHECKING:
    from ..transport.messages import TargetDescription
    from .target import TargetPlan

_log = logging.getLogger(__name__)

# What another forward costs, in tokens of padding that could be computed instead: launching the layers' kernels and
# reading the weights once more.
FORWARD_COST = {"cpu": 64, "cuda": 256}


class TransformersTarget:
    """``app.worker.target.Target`` on a transformers model."""

    def __init__(
        self, plan: TargetPlan, model: Any, tokenizer: Any | None, description: TargetDescription
    ) -> None:
        self.description = description
        self.max_prompt_tokens = plan.max_prompt_tokens
        self._width = plan.width
        self._device = torch.device(plan.device)
        self._model = text_model_of(model)
        self._tokenizer = tokenizer
        self._aux = self._streams = None
        if plan.layout.source == "aux_layers":
            self._aux = AuxLayerCapture(self._model, plan.layout)
        elif plan.layout.source == "pre_hc_head":
            self._streams = StreamCapture(self._model)
        self._forward_cost = FORWARD_COST[self._device.type]
        self._batches = True

    def step_tokens(self, lengths: list[int]) -> int:
        """Cost in tokens of a step, padding included."""
        return padded_tokens(lengths, self._groups(lengths))

    def run_step(self, prompts: list[list[int]], rows: list[torch.Tensor]) -> None:
        """Runs prompts and writes prompt i's rows into ``rows[i]`` (``[num_tokens, width]``)."""
        with torch.inference_mode():
            for group in self._groups([len(prompt) for prompt in prompts]):
                self._forward([prompts[index] for index in group], [rows[index] for index in group])
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Token ids of texts; ``TargetError`` ``tokenizer_missing`` where there is no tokenizer."""
        if self._tokenizer is None:
            raise TargetError("tokenizer_missing", "The target has no tokenizer; send prompt_token_ids.")
        return encode_texts(self._tokenizer, texts)

    def get_mtp_target_hidden_states(self) -> torch.Tensor | None:
        """The residual streams of the forward just run, ``[tokens, streams x hidden]``; ``None`` for other layouts."""
        return self._streams.take() if self._streams is not None else None

    def _groups(self, lengths: list[int]) -> list[list[int]]:
        if not self._batches:
            return [[index] for index in range(len(lengths))]
        return group_prompts(lengths, self._forward_cost)

    def _forward(self, prompts: list[list[int]], rows: list[torch.Tensor]) -> None:
        """One forward of a group, longest prompt first."""
        input_ids = self._padded(prompts)
        if self._aux is not None:
            self._aux.begin(rows)
            try:
                self._model(input_ids=input_ids, use_cache=False)
            except ForwardDone:
                pass
            finally:
                self._aux.end()
            return
        final = self._model(input_ids=input_ids, use_cache=False).last_hidden_state
        hidden = get_drafter_hidden_states(self, final.flatten(0, 1)).unflatten(0, input_ids.shape)
        for index, out in enumerate(rows):
            out.copy_(hidden[index, : out.shape[0]])

    def _padded(self, prompts: list[list[int]]) -> torch.Tensor:
        # Any real token will do as padding: nothing that follows a prompt reaches its rows.
        length = len(prompts[0])
        ids = [prompt + [prompt[-1]] * (length - len(prompt)) for prompt in prompts]
        return torch.tensor(ids, dtype=torch.int64).to(self._device)
