"""Fills slots with the rows of vLLM's requests, and has vLLM run the prompts of clients who ask here."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ...export.call_error import CallError
from ...export.exporter import Counters
from ...export.exporter_error import ExporterError
from ...export.job import Job
from ...export.lease_records import Holder, Lease, Placement
from ...export.slab import Slab
from ...transport.messages import TargetDescription
from .engine_api import EngineApi
from .shared_ledger import WAITING, SharedLedger
from .step import Prompt, Step

if TYPE_CHECKING:
    import torch

_logger = logging.getLogger(__name__)
SWEEP_S: Final = 0.25


@dataclass(slots=True, eq=False)
class _Ticket:
    """One prompt of a ``forward``, on its way through vLLM."""

    job: Job
    index: int

    @property
    def placement(self) -> Placement:
        return self.job.placements[self.index]


@dataclass(slots=True, eq=False)
class _Written:
    """A prompt whose rows are in its slot."""

    prompt: Prompt
    placement: Placement
    ticket: _Ticket | None


class VllmExporter:
    """The ``Exporter`` over vLLM. ``begin`` and ``export`` belong to the engine's thread, all else to the socket's loop.

    The engine never waits for a client: a prompt without a free slot is refused and counted, and the only thing that
    both threads share is the ledger, whose calls are short.

    Args:
        description: the target.
        slab: where the rows go.
        longest_prompt: tokens that one prompt may have.
        api: vLLM's API; ``None``: ``forward`` is refused.
        on_publish: called with the step's number and what was published with it.
    """

    def __init__(
        self,
        description: TargetDescription,
        slab: Slab,
        longest_prompt: int,
        api: EngineApi | None,
        on_publish: Callable[[int, list[Lease]], None],
    ) -> None:
        self.description = description
        self.slab = slab
        self.ledger = SharedLedger(slab.region.slots, slab.region.rows_per_slot, slab.page)
        self.counters = Counters()
        self.text_in_work = 0
        self._longest_prompt = longest_prompt
        self._api = api
        self._on_publish = on_publish
        self._announced: dict[str, asyncio.Future[None] | None] = {}
        self._tickets: dict[str, _Ticket] = {}
        self._jobs: dict[Holder, set[Job]] = {}
        self._runs: dict[Job, asyncio.Task[None]] = {}
        self._step = 0
        self._loop = asyncio.get_running_loop()
        self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)

    # The engine's thread.

    def begin(self, step: Step) -> None:
        """Takes note of what a step will bring, before anybody can ask for it."""
        with self.ledger.lock:
            self._announced.update(dict.fromkeys(step.announced))
        for lease_id in step.withdrawn:
            self._refuse(
                lease_id, CallError("cancelled", "The request ended before its prompt was computed.")
            )

    def export(
        self,
        prompts: list[Prompt],
        write: Callable[[Prompt, torch.Tensor], None],
        when_written: Callable[[Callable[[], None]], None],
    ) -> None:
        """Puts prompts into slots, as far as there are any.

        Args:
            prompts: what has become complete.
            write: queues the copy of a prompt's rows into ``[num_tokens, width]``.
            when_written: calls what it is given once the device has made the copies queued so far, on any thread.
        """
        began = time.perf_counter()
        done: list[_Written] = []
        for prompt in prompts:
            ticket = self._take_ticket(prompt.ticket)
            if (
                ticket is None and prompt.ticket is not None
            ):  # vLLM had begun with it when its call was given up
                self._refuse(prompt.lease_id, CallError("cancelled", "The call of this prompt was given up."))
                continue
            try:
                placement = self._place(prompt, ticket)
            except CallError as error:
                self._give_up(prompt, ticket, error)
                continue
            try:
                write(prompt, self.slab.rows(placement.slot, placement.row_start, placement.num_tokens))
            except Exception:  # the engine must live on, whatever became of the export
                _logger.exception("the rows of a prompt could not be written")
                failed = CallError(
                    "worker_error", "The rows could not be written; the engine's log has the cause."
                )
                self._give_up(prompt, ticket, failed)
                if ticket is None:
                    self._soon(self.ledger.settle, [placement])
                continue
            done.append(_Written(prompt, placement, ticket))
        if done:
            seconds = time.perf_counter() - began
            when_written(lambda: self._soon(self._publish, done, seconds))

    def refused(self, lease_id: str) -> bool:
        """Whether it is certain by now that an announced lease will not come."""
        return self.ledger.refused(lease_id)

    def _take_ticket(self, name: str | None) -> _Ticket | None:
        if name is None:
            return None
        with self.ledger.lock:
            return self._tickets.pop(name, None)

    def _place(self, prompt: Prompt, ticket: _Ticket | None) -> Placement:
        if prompt.refused is not None:
            raise CallError("worker_error", prompt.refused)
        if ticket is not None:
            return ticket.placement
        if len(prompt.token_ids) > self.slab.region.rows_per_slot:
            detail = f"The prompt has more tokens than the {self.slab.region.rows_per_slot} rows of a slot."
            raise CallError("prompt_too_long", detail)
        return self.ledger.reserve([len(prompt.token_ids)])[0]

    def _give_up(self, prompt: Prompt, ticket: _Ticket | None, error: CallError) -> None:
        self.counters.rejected += 1
        self._refuse(prompt.lease_id, error)
        if ticket is not None:
            self._soon(self._ticket_done, ticket, error)

    def _refuse(self, lease_id: str, error: CallError) -> None:
        self.ledger.refuse(lease_id, error)
        self._soon(self._arrived, lease_id)

    def _soon(self, act: Callable[..., object], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process is ending
            self._loop.call_soon_threadsafe(act, *arguments)

    # The socket's loop.

    @property
    def busy(self) -> bool:
        """See ``Exporter``."""
        return bool(self._jobs)

    @property
    def queue_depth(self) -> int:
        """Prompts of unanswered calls that have no rows yet."""
        return len(self._tickets)

    @property
    def queue_tokens(self) -> int:
        """Tokens of these prompts."""
        return sum(one.placement.num_tokens for one in list(self._tickets.values()))

    def encode(self, texts: list[str]) -> list[list[int]]:
        """See ``Exporter``."""
        raise ExporterError(
            "tokenizer_missing", f"Give token ids: the engine's connector encodes no text ({len(texts)})."
        )

    def coming(self, lease_id: str, /) -> asyncio.Future[None] | None:
        """See ``Exporter``."""
        with self.ledger.lock:
            if lease_id not in self._announced:
                return None
            future = self._announced[lease_id]
            if future is None:
                future = self._announced[lease_id] = self._loop.create_future()
            return future

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
        """See ``Exporter``."""
        try:
            api = self._checked_api()
            self._check(prompts, field)
            placements = self.ledger.reserve([len(prompt) for prompt in prompts])
        except CallError:
            self.counters.rejected += 1
            raise
        deadline = None if deadline_s is None else time.monotonic() + deadline_s
        self.counters.forwards += 1
        job = Job(holder, client, prompts, placements, ttl_s, deadline, answer)
        self._jobs.setdefault(holder, set()).add(job)
        names = [secrets.token_hex(16) for _ in prompts]
        with self.ledger.lock:
            self._tickets.update({name: _Ticket(job, index) for index, name in enumerate(names)})
        self._runs[job] = self._loop.create_task(self._run(job, names, api))
        return job

    def cancel(self, job: Job, error: CallError) -> None:
        """See ``Exporter``. A prompt that is being written keeps its rows until it is."""
        if job.error is not None or job.answered:
            return
        job.error = error
        self.counters.cancelled += 1
        with self.ledger.lock:
            mine = [name for name, ticket in self._tickets.items() if ticket.job is job]
            tickets = [self._tickets.pop(name) for name in mine]
        job.reply(error)
        for ticket in tickets:
            self._ticket_done(ticket, error)
        run = self._runs.get(job)
        if run is not None:
            run.cancel()

    def leave(self, holder: Holder) -> None:
        """See ``Exporter``."""
        gone = CallError("cancelled", "The connection was closed.")
        for job in list(self._jobs.get(holder, ())):
            self.cancel(job, gone)
        self.ledger.leave(holder)

    def stop(self) -> None:
        """See ``Exporter``."""
        self._sweeper.cancel()
        for run in self._runs.values():
            run.cancel()

    async def stopped(self) -> None:
        """Waits for what ``stop`` has cancelled."""
        await asyncio.gather(*self._runs.values(), return_exceptions=True)

    def _checked_api(self) -> EngineApi:
        if self._api is None:
            detail = (
                "This engine exports its own traffic only; set api_url in kv_connector_extra_config to have it run "
                "prompts that come through Draftport."
            )
            raise CallError("worker_unavailable", detail)
        return self._api

    def _check(self, prompts: list[list[int]], field: str) -> None:
        for index, prompt in enumerate(prompts):
            where = f"{field}.{index}"
            if not prompt:
                raise CallError("empty_prompt", f"{where}: give at least one token.", field=where)
            if len(prompt) > self._longest_prompt:
                detail = f"{where}: {len(prompt)} tokens are more than the {self._longest_prompt} that one prompt may have."
                raise CallError("prompt_too_long", detail, field=where)
            if not 0 <= min(prompt) <= max(prompt) < self.description.vocab_size:
                detail = f"{where}: token ids must be from 0 to {self.description.vocab_size - 1}."
                raise CallError("token_out_of_range", detail, field=where)

    async def _run(self, job: Job, names: list[str], api: EngineApi) -> None:
        """Has vLLM run a job's prompts; what they bring comes through ``export``, each under its ticket."""
        try:
            async with asyncio.TaskGroup() as group:
                for prompt, name in zip(job.prompts, names, strict=True):
                    group.create_task(api.prefill(prompt, name))
        except* CallError as errors:
            self.cancel(job, _first(errors))
        except* Exception as errors:
            _logger.exception("a forward failed", exc_info=errors)
            self.cancel(job, CallError("worker_error", "The call failed; the engine's log has the cause."))
        else:
            if any(name in self._tickets for name in names):
                detail = "The engine answered without rows; its log has the cause."
                self.cancel(job, CallError("worker_error", detail))
        finally:
            self._runs.pop(job, None)

    def _publish(self, done: list[_Written], seconds: float) -> None:
        self._step += 1
        self.ledger.written([one.placement for one in done], self._step)
        counters = self.counters
        counters.steps += 1
        counters.step_seconds += seconds
        counters.capacity += self.slab.region.rows_per_slot
        leases: list[Lease] = []
        for one in done:
            counters.prompts += 1
            counters.tokens += one.placement.num_tokens
            if one.ticket is not None:
                leases += self._ticket_done(one.ticket, None)
            else:
                leases.append(self._publish_waiting(one))
            self._arrived(one.prompt.lease_id)
        if leases:
            self._on_publish(self._step, leases)

    def _publish_waiting(self, one: _Written) -> Lease:
        lease = self.ledger.publish(
            one.placement,
            one.prompt.token_ids,
            index=0,
            holder=WAITING,
            ttl_s=one.prompt.ttl_s,
            lease_id=one.prompt.lease_id,
        )
        self.ledger.settle([one.placement])
        return lease

    def _ticket_done(self, ticket: _Ticket, error: CallError | None) -> list[Lease]:
        """Notes that nothing more will be written for a prompt; publishes its job's leases with the last of them."""
        job = ticket.job
        if error is not None:
            self.cancel(job, error)
        job.waiting -= 1
        if job.waiting:
            return []
        leases: list[Lease] = []
        if job.error is None:
            leases = [
                self.ledger.publish(placement, prompt, index=index, holder=job.holder, ttl_s=job.ttl_s)
                for index, (placement, prompt) in enumerate(zip(job.placements, job.prompts, strict=True))
            ]
        self.ledger.settle(job.placements)
        mine = self._jobs.get(job.holder, set())
        mine.discard(job)
        if not mine:
            self._jobs.pop(job.holder, None)
        if job.error is None:
            job.reply(leases)
        return leases

    def _arrived(self, lease_id: str) -> None:
        with self.ledger.lock:
            future = self._announced.pop(lease_id, None)
        if future is not None:
            future.set_result(None)

    def _sweep(self) -> None:
        self.ledger.expire()
        late = CallError(
            "deadline_exceeded",
            "The rows were not there in time; try again, or allow more time.",
            retry_after_s=1.0,
        )
        for job in [one for jobs in self._jobs.values() for one in jobs if one.late()]:
            self.cancel(job, late)
        self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)


def _first(errors: BaseExceptionGroup[CallError]) -> CallError:
    found = errors.exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found
