"""A ``forward`` call on its way to its rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from .call_error import CallError
from .lease_records import Holder, Lease, Placement


@dataclass(slots=True, eq=False)
class Job:
    """One ``forward``.

    Attributes:
        holder: the connection that asked, which will hold the leases.
        client: whose share of the queue it is.
        prompts: token ids.
        placements: where each prompt's rows go.
        ttl_s: of the leases.
        deadline: monotonic seconds by which the rows must be there, or ``None``.
        answer: called once, on the loop, with leases or the error.
        waiting: prompts that have not run yet.
        error: set when the job has failed or was given up; its rows are then published no more.
    """

    holder: Holder
    client: Hashable
    prompts: list[list[int]]
    placements: list[Placement]
    ttl_s: float
    deadline: float | None
    answer: Callable[[list[Lease] | CallError], None]
    waiting: int = 0
    error: CallError | None = None
    answered: bool = False

    def __post_init__(self) -> None:
        self.waiting = len(self.prompts)

    def late(self) -> bool:
        """Whether its deadline has passed."""
        return self.deadline is not None and time.monotonic() >= self.deadline

    def reply(self, result: list[Lease] | CallError) -> None:
        """Answers, once."""
        if not self.answered:
            self.answered = True
            self.answer(result)
