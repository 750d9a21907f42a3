"""A ready worker's heart: takes prompts in, makes steps of them, publishes their rows as leases."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable
from typing import Final

from ..export.call_error import CallError
from ..export.exporter import Counters
from ..export.job import Job
from ..export.lease_records import Holder, Lease
from ..export.leases import Ledger
from ..export.slab import Slab
from ..transport.messages import TargetDescription
from .jobs import Step
from .model_thread import ModelThread
from .queue import PromptQueue
from .target import Target

STEPS_IN_FLIGHT: Final = 2
QUEUE_STEPS: Final = 64
SWEEP_S: Final = 0.25


class Engine:
    """Lives on the worker's loop; the model has a thread of its own.

    While one step runs the next is made ready, so the model never waits for this loop.

    Args:
        target: the model.
        slab: where its rows go.
        max_queue_tokens: bound on waiting tokens; ``None``: 64 full steps.
        on_publish: called with the step's number and every lease that was published with it.
    """

    def __init__(
        self,
        target: Target,
        slab: Slab,
        max_queue_tokens: int | None,
        on_publish: Callable[[int, list[Lease]], None],
    ) -> None:
        self.target = target
        self.slab = slab
        self.counters = Counters()
        self.text_in_work = 0  # characters of prompts that are being encoded
        self._limit = target.description.max_num_batched_tokens
        self.ledger = Ledger(slab.region.slots, slab.region.rows_per_slot, slab.page)
        self.queue = PromptQueue(
            max_queue_tokens or QUEUE_STEPS * self._limit, self._limit, target.step_tokens
        )
        self._on_publish = on_publish
        self._jobs: dict[Holder, set[Job]] = {}
        self._in_flight = 0
        self._step = 0
        self._loop = asyncio.get_running_loop()
        self._thread = ModelThread(target, slab, self._from_thread)
        self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)

    @property
    def description(self) -> TargetDescription:
        """The target."""
        return self.target.description

    @property
    def queue_depth(self) -> int:
        """Prompts that wait for a step."""
        return len(self.queue)

    @property
    def queue_tokens(self) -> int:
        """Tokens that wait for a step."""
        return self.queue.tokens

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Token ids by the target's tokenizer; ``TargetError`` where there is none."""
        return self.target.encode(texts)

    def coming(self, _lease_id: str) -> None:
        """Never anything: leases are told of once they are there."""
        return

    @property
    def busy(self) -> bool:
        """Whether any call is unanswered."""
        return bool(self._jobs)

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
        """Takes in a call; ``answer`` is called once, later, on the loop. ``field`` is where the prompts stood.

        Raises:
            CallError: the prompts do not fit, or there is no room for them now.
        """
        try:
            self._check(prompts, field)
            self.queue.check_room(client, sum(map(len, prompts)))
            placements = self.ledger.reserve([len(prompt) for prompt in prompts])
        except CallError:
            self.counters.rejected += 1
            raise
        deadline = None if deadline_s is None else time.monotonic() + deadline_s
        self.counters.forwards += 1
        job = Job(holder, client, prompts, placements, ttl_s, deadline, answer)
        self._jobs.setdefault(holder, set()).add(job)
        self.queue.add(job)
        self._advance()
        return job

    def cancel(self, job: Job, error: CallError) -> None:
        """Gives a job up. Rows that the model may still be writing stay reserved until it has."""
        if job.error is not None or job.answered:
            return
        job.error = error
        self.counters.cancelled += 1
        job.waiting -= self.queue.drop(job)
        job.reply(error)
        if not job.waiting:
            self._finish(job)

    def leave(self, holder: Holder) -> None:
        """A connection is gone: its holds end, its work is given up."""
        gone = CallError("cancelled", "The connection was closed.")
        for job in list(self._jobs.get(holder, ())):
            self.cancel(job, gone)
        self.ledger.leave(holder)

    def stop(self) -> None:
        """Ends the model's thread."""
        self._sweeper.cancel()
        self._thread.stop()

    def _check(self, prompts: list[list[int]], field: str) -> None:
        longest = self.target.max_prompt_tokens
        vocab_size = self.target.description.vocab_size
        for index, prompt in enumerate(prompts):
            where = f"{field}.{index}"
            if not prompt:
                raise CallError("empty_prompt", f"{where}: give at least one token.", field=where)
            if len(prompt) > longest:
                detail = (
                    f"{where}: {len(prompt)} tokens are more than the {longest} that one prompt may have."
                )
                raise CallError("prompt_too_long", detail, field=where)
            if not 0 <= min(prompt) <= max(prompt) < vocab_size:
                detail = f"{where}: token ids must be from 0 to {vocab_size - 1}."
                raise CallError("token_out_of_range", detail, field=where)

    def _advance(self) -> None:
        while self._in_flight < STEPS_IN_FLIGHT:
            step = self.queue.next_step()
            if step is None:
                return
            self._in_flight += 1
            self._thread.submit(step)

    def _from_thread(self, step: Step) -> None:
        try:
            self._loop.call_soon_threadsafe(self._stepped, step)
        except RuntimeError:  # the loop is closed: the process is ending
            return

    def _stepped(self, step: Step) -> None:
        self._in_flight -= 1
        self._step += 1
        self._count(step)
        self.ledger.written([part.placement for part in step.parts], self._step)
        for part in step.parts:
            part.job.waiting -= 1
            if part.job.error is None:
                part.job.error = step.error
        published: list[Lease] = []
        for job in step.jobs:
            if job.error is not None:
                job.waiting -= self.queue.drop(job)
                job.reply(job.error)
            if not job.waiting:
                published += self._finish(job)
        self._advance()
        if published:
            self._on_publish(self._step, published)

    def _finish(self, job: Job) -> list[Lease]:
        """Publishes a job whose last prompt has run, unless it failed; the leases."""
        leases: list[Lease] = []
        if job.error is None:
            leases = [
                self.ledger.publish(placement, prompt, index=index, holder=job.holder, ttl_s=job.ttl_s)
                for index, (placement, prompt) in enumerate(zip(job.placements, job.prompts, strict=True))
            ]
        self.ledger.settle(job.placements)
        mine = self._jobs[job.holder]
        mine.discard(job)
        if not mine:
            del self._jobs[job.holder]
        if job.error is None:
            job.reply(leases)
        return leases

    def _count(self, step: Step) -> None:
        counters = self.counters
        counters.steps += 1
        counters.tokens += step.tokens
        counters.prompts += len(step.parts)
        counters.step_seconds += step.seconds
        counters.capacity += self._limit

    def _sweep(self) -> None:
        """Ends what time ends, also when nobody asks."""
        self.ledger.expire()
        late = CallError(
            "deadline_exceeded",
            "The rows were not there in time; try again, or allow more time.",
            retry_after_s=1.0,
        )
        for job in self.queue.late_jobs():
            self.cancel(job, late)
        self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)
