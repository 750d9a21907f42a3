"""The queue under any sequence of calls: bounded, first come first served per client, fair between clients."""

import time
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from app.export.call_error import CallError
from app.export.job import Job
from app.worker.queue import PromptQueue

LIMIT, BOUND = 16, 60


def job_of(client, lengths, deadline=None):
    return Job(client, client, [[1] * length for length in lengths], [], 30.0, deadline, lambda _: None)


def new_queue(bound=BOUND, cost=sum):
    return PromptQueue(bound, LIMIT, cost)


class QueueMachine(RuleBasedStateMachine):
    """Beside a plain list per client."""

    def __init__(self):
        super().__init__()
        self.queue = new_queue()
        self.lines = {}

    @rule(client=st.sampled_from("abcd"), lengths=st.lists(st.integers(1, LIMIT), min_size=1, max_size=9))
    def add(self, client, lengths):
        waiting = sum(length for line in self.lines.values() for _, _, length in line)
        try:
            self.queue.check_room(client, sum(lengths))
        except CallError as error:
            refused = (error.code, error.retry_after_s)
        else:
            refused = None
        if refused:
            assert refused == ("overloaded", 1.0)
            assert self.lines[client]
            assert waiting + sum(lengths) > BOUND
            return
        assert not self.lines.get(client) or waiting + sum(lengths) <= BOUND
        job = job_of(client, lengths)
        self.queue.add(job)
        line = self.lines.setdefault(client, deque())
        line.extend((job, index, length) for index, length in enumerate(lengths))

    @precondition(lambda self: any(self.lines.values()))
    @rule(data=st.data())
    def drop(self, data):
        client = data.draw(st.sampled_from(sorted(c for c, line in self.lines.items() if line)))
        job = data.draw(st.sampled_from([job for job, _, _ in self.lines[client]]))
        kept = deque(entry for entry in self.lines[client] if entry[0] is not job)
        assert self.queue.drop(job) == len(self.lines[client]) - len(kept)
        assert self.queue.drop(job) == 0
        self.lines[client] = kept

    @rule()
    def step(self):
        step = self.queue.next_step()
        clients = {client for client, line in self.lines.items() if line}
        if not clients:
            assert step is None
            return
        assert step.parts
        assert step.tokens <= LIMIT
        taken = [part.job.client for part in step.parts]
        for part in step.parts:
            job, index, _length = self.lines[part.job.client].popleft()  # in the order they came
            assert (part.job, part.index) == (job, index)
        # Nobody gets a second prompt in while one who could have had a first is left out.
        counts = {client: taken.count(client) for client in clients}
        for client in clients:
            if counts[client] == 0:
                shortest = self.lines[client][0][2]
                assert max(counts.values()) <= 1 or shortest > LIMIT - step.tokens

    @invariant()
    def the_counts_are_right(self):
        lengths = [length for line in self.lines.values() for _, _, length in line]
        assert (len(self.queue), self.queue.tokens) == (len(lengths), sum(lengths))


QueueMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestQueue = QueueMachine.TestCase


def test_one_client_with_many_prompts_delays_another_by_one_step_at_most():
    queue = new_queue(bound=10_000)
    queue.add(job_of("greedy", [LIMIT] * 500))
    assert queue.next_step().parts[0].job.client == "greedy"
    queue.add(job_of("modest", [4]))
    first, second = queue.next_step(), queue.next_step()
    assert "modest" in [part.job.client for part in first.parts + second.parts]


@given(st.lists(st.integers(1, LIMIT), min_size=1, max_size=200))
def test_every_prompt_runs_once_and_steps_are_not_overfull(lengths):
    queue = new_queue(bound=10_000, cost=lambda some: max(some) * len(some))  # all padded to the longest
    for client in range(7):
        queue.add(job_of(client, lengths))
    ran = []
    while (step := queue.next_step()) is not None:
        sizes = [len(part.token_ids) for part in step.parts]
        assert len(sizes) == 1 or max(sizes) * len(sizes) <= LIMIT
        ran += [(part.job.client, part.index) for part in step.parts]
    assert sorted(ran) == [(client, index) for client in range(7) for index in range(len(lengths))]
    assert (len(queue), queue.tokens, queue._lines) == (0, 0, {})


def test_a_large_prompt_is_not_passed_over_for_ever():
    queue = new_queue(bound=10_000)
    queue.add(job_of("large", [LIMIT] * 5))
    queue.add(job_of("small", [1] * 500))
    ran = [part.job.client for _ in range(10) for part in queue.next_step().parts]
    assert ran.count("large") == 5


def test_only_those_who_wait_already_are_refused():
    queue = new_queue()
    queue.check_room("a", 10 * BOUND)
    queue.add(job_of("a", [1]))
    queue.check_room("a", BOUND - 1)
    with pytest.raises(CallError, match="overloaded"):
        queue.check_room("a", BOUND)
    queue.check_room("b", 10 * BOUND)


def test_late_jobs_are_found_once_each():
    queue = new_queue()
    late = job_of("a", [1, 1, 1], deadline=time.monotonic() - 1)
    queue.add(late)
    queue.add(job_of("a", [1], deadline=time.monotonic() + 100))
    queue.add(job_of("b", [1]))
    assert queue.late_jobs() == [late]
