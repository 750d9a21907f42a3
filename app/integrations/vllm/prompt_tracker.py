"""The scheduler's side: which prompts become complete in a step.

Prompts may be computed in chunks, be preempted and start anew, or have a prefix in vLLM's prefix cache, whose blocks
hold rows of the hidden states as well: once the last chunk is computed, the cache has a row for every token. (vLLM's V1
runner would skip the rows of a step in which a sequence is longer than ``max_model_len - 1``; its scheduler lets none
become so long. Source: vLLM 0.32, ``_input_fits_in_drafter`` and ``Scheduler.schedule``.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...export.leases import new_lease_id
from .settings import ConnectorSettings, request_settings
from .step import Prompt, Step

EMBEDDINGS_ONLY = "The prompt has no token ids (it is given as embeddings), so its rows cannot be told apart."
NOT_WHOLE = "The prompt was not computed in one step from its start, so some of its rows are gone; raise the batch limit."
MISSING_ROWS = "vLLM has no rows for part of this prompt; send it again without the prefix cache."
_NULL_BLOCK = 0  # vLLM's placeholder for a block that is not there


@dataclass(slots=True)
class _Open:
    """A prompt that is not complete yet."""

    lease_id: str
    token_ids: list[int]
    ttl_s: float
    ticket: str | None


class PromptTracker:
    """Follows the prompts of one scheduler.

    Args:
        settings: the connector's.
        group: index of the hidden states' group of KV cache blocks; ``None`` where there is none and rows must be taken
            from the step that computes them: only prompts that are computed whole can be exported then.
        block_size: tokens of one of its blocks.
    """

    def __init__(self, settings: ConnectorSettings, *, group: int | None, block_size: int) -> None:
        self._settings = settings
        self._group = group
        self._block_size = block_size
        self._open: dict[str, _Open] = {}
        self._leases: dict[str, str] = {}
        self._withdrawn: list[str] = []

    def step(self, scheduled: Any) -> Step:
        """What to tell the worker's side of a step that vLLM has just scheduled (a ``SchedulerOutput``)."""
        step = Step(withdrawn=self._withdrawn)
        self._withdrawn = []
        computed: dict[str, int] = {}
        for request in scheduled.scheduled_new_reqs:
            computed[request.req_id] = request.num_computed_tokens
            self._begin(request, step)
        cached = scheduled.scheduled_cached_reqs
        computed.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        tokens = scheduled.num_scheduled_tokens
        for req_id in [one for one in self._open if one in tokens]:
            if computed[req_id] + tokens[req_id] >= len(self._open[req_id].token_ids):
                step.prompts.append(self._complete(req_id, computed[req_id], scheduled))
        return step

    def finished(self, req_id: str) -> str | None:
        """The lease announced for a request that ended, unless its prompt was never complete."""
        lease_id = self._leases.pop(req_id, None)
        if self._open.pop(req_id, None) is not None and lease_id is not None:
            self._withdrawn.append(lease_id)
            return None
        return lease_id

    def _begin(self, request: Any, step: Step) -> None:
        extra = getattr(request.sampling_params, "extra_args", None) or {}
        asked = request_settings(extra.get("kv_transfer_params"))
        wanted = self._settings.export == "all" if asked.export is None else asked.export
        if not wanted and asked.ticket is None:
            return
        lease_id = new_lease_id()
        self._leases[request.req_id] = lease_id
        step.announced.append(lease_id)
        ttl_s = asked.lease_ttl_s or self._settings.lease_ttl_s
        if request.prompt_token_ids is None or request.prompt_embeds is not None:
            step.prompts.append(
                Prompt(lease_id, request.req_id, [], [], ttl_s, asked.ticket, EMBEDDINGS_ONLY)
            )
            return
        self._open[request.req_id] = _Open(lease_id, list(request.prompt_token_ids), ttl_s, asked.ticket)

    def _complete(self, req_id: str, computed: int, scheduled: Any) -> Prompt:
        prompt = self._open.pop(req_id)
        needed: list[int] = []
        refused = None
        if self._group is not None:
            count = -(-len(prompt.token_ids) // self._block_size)
            found = scheduled.kv_connector_block_state.get_block_ids(req_id)
            needed = list(found[self._group][:count]) if found is not None else []
            refused = MISSING_ROWS if len(needed) < count or _NULL_BLOCK in needed else None
        elif computed:
            refused = NOT_WHOLE
        return Prompt(prompt.lease_id, req_id, prompt.token_ids, needed, prompt.ttl_s, prompt.ticket, refused)
