"""What the socket's side needs of whoever fills the slab: our worker's engine, or an inference engine's connector."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Protocol

from ..transport.messages import TargetDescription
from .call_error import CallError
from .job import Job
from .lease_records import Holder, Lease
from .leases import Ledger
from .slab import Slab


class Counters:
    """What ``stats`` reports, since the exporter's start."""

    def __init__(self) -> None:
        self.steps = 0
        self.tokens = 0
        self.prompts = 0
        self.forwards = 0
        self.rejected = 0
        self.cancelled = 0
        self.step_seconds = 0.0
        self.capacity = 0


class Exporter(Protocol):
    """Fills slots with rows. Everything is called on the server's loop, ``encode`` from a thread of its own.

    Attributes:
        slab: where the rows lie.
        counters: what was done so far.
        text_in_work: characters of prompts that are being encoded; the connections count them.
    """

    slab: Slab
    counters: Counters
    text_in_work: int

    @property
    def ledger(self) -> Ledger:
        """Whose the rows are."""

    @property
    def description(self) -> TargetDescription:
        """The model that the rows come from."""

    @property
    def busy(self) -> bool:
        """Whether any ``forward`` is unanswered."""

    @property
    def queue_depth(self) -> int:
        """Prompts that wait."""

    @property
    def queue_tokens(self) -> int:
        """Tokens that wait."""

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Token ids of texts.

        Raises:
            ExporterError: ``tokenizer_missing``.
        """

    def submit(
        self,
        prompts: list[list[int]],
        *,
        holder: Holder,
        client: Hashable,
        ttl_s: float,
        deadline_s: float | None,
        answer: Callable[[list[Lease] | CallError], None],
        field: str = "prompt_token_ids",
    ) -> Job:
        """Takes in a call; ``answer`` is called once, later. ``field`` is where the prompts stood.

        Raises:
            CallError: the prompts do not fit, or there is no room for them now.
        """

    def cancel(self, job: Job, error: CallError) -> None:
        """Gives a job up."""

    def coming(self, lease_id: str, /) -> asyncio.Future[None] | None:
        """Done once a lease that was announced is there, or never will be; ``None`` for one that nobody announced."""

    def leave(self, holder: Holder) -> None:
        """A connection is gone: its holds end, its work is given up."""

    def stop(self) -> None:
        """Ends what runs in the background."""
