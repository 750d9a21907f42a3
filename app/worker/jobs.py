"""A ``forward`` call on its way through the worker: a job, one prompt of it after another in a step."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..export.call_error import CallError
from ..export.job import Job
from ..export.lease_records import Placement

__all__ = ["Job", "Part", "Step"]


@dataclass(slots=True, eq=False)
class Part:
    """One prompt of a job."""

    job: Job
    index: int

    @property
    def token_ids(self) -> list[int]:
        """The prompt."""
        return self.job.prompts[self.index]

    @property
    def placement(self) -> Placement:
        """Where its rows go."""
        return self.job.placements[self.index]


@dataclass(slots=True, eq=False)
class Step:
    """Prompts that run together."""

    parts: list[Part]
    tokens: int = 0
    seconds: float = 0.0
    error: CallError | None = None
    jobs: set[Job] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.tokens = sum(len(part.token_ids) for part in self.parts)
        self.jobs = {part.job for part in self.parts}
