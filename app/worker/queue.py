"""Prompts that wait for a step: one line per client, served in turn, bounded in tokens."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator
from typing import Final

from ..export.call_error import CallError
from .jobs import Job, Part, Step

RETRY_AFTER_S: Final = 1.0
WINDOW: Final = 1024


class PromptQueue:
    """Waiting prompts.

    Args:
        max_tokens: bound on all waiting tokens.
        step_limit: bound on a step's tokens.
        step_tokens: what running prompts of these lengths together costs, in tokens (``Target.step_tokens``).
    """

    def __init__(self, max_tokens: int, step_limit: int, step_tokens: Callable[[list[int]], int]) -> None:
        self._max_tokens = max_tokens
        self._step_limit = step_limit
        self._step_tokens = step_tokens
        self._lines: OrderedDict[Hashable, deque[Part]] = OrderedDict()
        self.tokens = 0

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def check_room(self, client: Hashable, tokens: int) -> None:
        """Refuses work that would make the queue longer than its bound.

        A client with nothing in the queue is never refused: what the others have waiting is not its fault, and rows
        were reserved for all that waits, so the slab bounds it too.

        Raises:
            CallError: ``overloaded``.
        """
        if client in self._lines and self.tokens + tokens > self._max_tokens:
            raise CallError(
                "overloaded",
                f"{self.tokens} tokens wait already and at most {self._max_tokens} may; try again later.",
                retry_after_s=RETRY_AFTER_S,
            )

    def add(self, job: Job) -> None:
        """Appends a job's prompts to its client's line."""
        line = self._lines.setdefault(job.client, deque())
        line.extend(Part(job, index) for index in range(len(job.prompts)))
        self.tokens += sum(map(len, job.prompts))

    def drop(self, job: Job) -> int:
        """Takes a job's waiting prompts out; how many there were."""
        line = self._lines.get(job.client)
        if line is None:
            return 0
        kept = deque(part for part in line if part.job is not job)
        dropped = len(line) - len(kept)
        self.tokens -= sum(len(part.token_ids) for part in line if part.job is job)
        self._replace(job.client, kept)
        return dropped

    def late_jobs(self) -> list[Job]:
        """Jobs in the queue whose deadline has passed."""
        return list({part.job for line in self._lines.values() for part in line if part.job.late()})

    def next_step(self) -> Step | None:
        """Takes out the prompts of the next step, ``None`` when nothing waits.

        Clients take turns, one prompt each, so that a client with thousands of prompts delays another by one step at
        most; the step is filled as far as the target can run it at once.
        """
        chosen = self._in_turn()
        if not chosen:
            return None
        while len(chosen) > 1 and self._cost(chosen) > self._step_limit:
            del chosen[-max(1, len(chosen) // 8) :]
        self._take(chosen)
        return Step(chosen)

    def _cost(self, parts: list[Part]) -> int:
        return self._step_tokens([len(part.token_ids) for part in parts])

    def _in_turn(self) -> list[Part]:
        """Prompts in fair order whose tokens alone, without padding, fill a step."""
        chosen: list[Part] = []
        room = self._step_limit
        for part in self._round_robin():
            room -= len(part.token_ids)
            if chosen and (room < 0 or len(chosen) >= WINDOW):
                break
            chosen.append(part)
        return chosen

    def _round_robin(self) -> Iterator[Part]:
        lines = [iter(line) for line in self._lines.values()]
        while lines:
            for line in list(lines):
                part = next(line, None)
                if part is None:
                    lines.remove(line)
                else:
                    yield part

    def _take(self, parts: list[Part]) -> None:
        self.tokens -= sum(len(part.token_ids) for part in parts)
        taken: dict[Hashable, int] = {}
        for part in parts:
            taken[part.job.client] = taken.get(part.job.client, 0) + 1
        for client, count in taken.items():
            line = self._lines[client]
            for _ in range(count):
                line.popleft()  # prompts of a line are always taken from its head
            self._replace(client, line)
            if client in self._lines:
                self._lines.move_to_end(client)

    def _replace(self, client: Hashable, line: deque[Part]) -> None:
        if line:
            self._lines[client] = line
        else:
            del self._lines[client]
