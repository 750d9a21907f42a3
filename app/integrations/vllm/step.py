"""What the scheduler's side of the connector tells the worker's side with every step. vLLM sends it by pickle."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Prompt:
    """A prompt whose last token is computed in this step.

    Attributes:
        lease_id: under which its rows were announced.
        req_id: vLLM's name of the request.
        token_ids: the prompt.
        block_ids: blocks of the hidden states' cache that hold its rows, in order.
        ttl_s: how long the rows wait for a reader.
        ticket: the ``forward`` that it belongs to, or ``None``.
        refused: why its rows cannot be exported, or ``None``.
    """

    lease_id: str
    req_id: str
    token_ids: list[int]
    block_ids: list[int]
    ttl_s: float
    ticket: str | None = None
    refused: str | None = None


@dataclass(slots=True)
class Step:
    """One step.

    Attributes:
        announced: leases that will come, or be given up, after this step at the earliest.
        withdrawn: announced leases that will not come: their requests ended before their prompts did.
        prompts: what is complete at the end of this step.
    """

    announced: list[str] = field(default_factory=list)
    withdrawn: list[str] = field(default_factory=list)
    prompts: list[Prompt] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.announced or self.withdrawn or self.prompts)
