"""The loaded target: batches prompts, runs forwards without a KV cache, captures into the rows it is given.

Each prompt's rows equal those of a forward of that prompt alone within the rounding of the dtype, because different
batch shapes take different matrix kernels. Largest difference relative to the largest element, measured over the
architectures of the parity test: float32 1e-5, float16 1e-2, bfloat16 5e-2 (a mixture of experts may send a token
that sits on the boundary between two experts to the other one; that is a property of the model, not of the batch).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch

from ..drafting.hidden_states import get_drafter_hidden_states
from ..drafting.shapes import lookup, read_shape
from .batching import group_equal_lengths, group_prompts, padded_tokens
from .capture import AuxLayerCapture, ForwardDone, StreamCapture
from .decoder import text_model_of
from .probe import Batching, probe_batching
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
        self._plan = plan
        self._device = torch.device(plan.device)
        self._model = text_model_of(model)
        self._tokenizer = tokenizer
        self._aux = self._streams = None
        if plan.layout.source == "aux_layers":
            streams = read_shape(plan.checkpoint.config).streams
            self._aux = AuxLayerCapture(self._model, plan.layout, streams)
        elif plan.layout.source == "pre_hc_head":
            self._streams = StreamCapture(self._model)
        self.batching = self._probe()

    def step_tokens(self, lengths: list[int]) -> int:
        """Cost in tokens of a step, padding included."""
        return padded_tokens(lengths, self._groups(lengths))

    def run_step(self, prompts: list[list[int]], rows: list[torch.Tensor]) -> None:
        """Runs prompts and writes prompt i's rows into ``rows[i]`` (``[num_tokens, width]``)."""
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
        return self._streams.rows() if self._streams is not None else None

    def _groups(self, lengths: list[int]) -> list[list[int]]:
        limit = self.description.max_num_batched_tokens
        if self.batching == "padded":
            return group_prompts(lengths, FORWARD_COST[self._device.type], limit)
        if self.batching == "equal_lengths":
            return group_equal_lengths(lengths, limit)
        return [[index] for index in range(len(lengths))]

    def _forward(self, prompts: list[list[int]], rows: list[torch.Tensor]) -> None:
        """One forward of a group, longest prompt first."""
        with torch.inference_mode():
            input_ids = self._padded(prompts)
            if self._aux is not None:
                self._capture_layers(self._aux, input_ids, rows)
            else:
                self._capture_output(input_ids, rows)

    def _capture_output(self, input_ids: torch.Tensor, rows: list[torch.Tensor]) -> None:
        final = self._model(input_ids=input_ids, use_cache=False).last_hidden_state
        hidden = get_drafter_hidden_states(self, final.flatten(0, 1)).unflatten(0, input_ids.shape)
        for index, out in enumerate(rows):
            out.copy_(hidden[index, : out.shape[0]])
        if self._streams is not None:
            self._streams.end()

    def _capture_layers(
        self, aux: AuxLayerCapture, input_ids: torch.Tensor, rows: list[torch.Tensor]
    ) -> None:
        aux.begin(rows)
        # The last hook ends the forward where the layers behind it would be computed for nothing.
        with suppress(ForwardDone):
            self._model(input_ids=input_ids, use_cache=False)
        aux.end()

    def _padded(self, prompts: list[list[int]]) -> torch.Tensor:
        # Any real token will do as padding: nothing that follows a prompt reaches its rows.
        length = len(prompts[0])
        ids = [prompt + [prompt[-1]] * (length - len(prompt)) for prompt in prompts]
        return torch.tensor(ids, dtype=torch.int64).to(self._device)

    def _probe(self) -> Batching:
        """How prompts may be batched; ``TargetError`` when not even a small prompt can be run."""

        def run(prompts: list[list[int]]) -> list[torch.Tensor]:
            dtype = getattr(torch, self._plan.dtype)
            rows = [
                torch.zeros(len(prompt), self._plan.width, dtype=dtype, device=self._device)
                for prompt in prompts
            ]
            self._forward(prompts, rows)
            return rows

        try:
            found = probe_batching(run, self.description.vocab_size, self.max_prompt_tokens)
        except torch.OutOfMemoryError as error:
            raise TargetError(
                "out_of_memory", f"{self._plan.device} has no memory left to run a prompt; free some."
            ) from error
        except Exception as error:
            _log.warning("A first forward of %s failed", self.description.model, exc_info=error)
            raise self._not_runnable(error) from error
        return "equal_lengths" if found == "padded" and _selects_keys(self._plan.checkpoint.config) else found

    def _not_runnable(self, error: Exception) -> TargetError:
        name, source = self.description.architecture, self._plan.layout.source
        if source == "final":
            return TargetError(
                "target_unsupported",
                f"{name} can't run a text prompt here ({type(error).__name__}); take another.",
            )
        return TargetError(
            "layout_unsupported",
            f"{name} has no {source} that could be captured here ({type(error).__name__}); set CAPTURE=final.",
        )


def _selects_keys(config: Mapping[str, Any]) -> bool:
    """Whether attention picks its keys by top-k (DeepSeek V3.2 and V4, Qwen4-exp).

    Where scores tie, the pick depends on the padding; the probe's prompts are too short to show it.
    """
    return lookup(config, "index_topk", "indexer_budget") is not None
