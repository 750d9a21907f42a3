"""What the connector makes of vLLM's scheduler: chunks, preemption, aborts, opt-in and opt-out.

vLLM itself is not needed: its scheduler's output is plain data, here of the fields that the connector reads.
"""

from types import SimpleNamespace

import pytest

from app.integrations.vllm.prompt_tracker import EMBEDDINGS_ONLY, MISSING_ROWS, PromptTracker
from app.integrations.vllm.settings import ConnectorSettings

BLOCK = 4


class Scheduler:
    """Hands out blocks and says what it scheduled, as ``SchedulerOutput`` does."""

    def __init__(self):
        self.blocks = {}
        self.next_block = 1

    def step(self, new=(), cached=(), preempted=()):
        """``new``: (id, prompt, computed, scheduled[, params]); ``cached``: (id, computed, scheduled)."""
        requests, tokens = [], {}
        for req_id, prompt, computed, count, *params in new:
            extra = {"kv_transfer_params": params[0]} if params else None
            requests.append(
                SimpleNamespace(
                    req_id=req_id,
                    prompt_token_ids=prompt,
                    prompt_embeds=None,
                    num_computed_tokens=computed,
                    sampling_params=SimpleNamespace(extra_args=extra),
                )
            )
            self.grow(req_id, computed + count)
            tokens[req_id] = count
        for req_id, computed, count in cached:
            self.grow(req_id, computed + count)
            tokens[req_id] = count
        state = SimpleNamespace(
            get_block_ids=lambda req_id: ([], self.blocks[req_id]) if req_id in tokens else None
        )
        return SimpleNamespace(
            scheduled_new_reqs=requests,
            scheduled_cached_reqs=SimpleNamespace(
                req_ids=[one[0] for one in cached],
                num_computed_tokens=[one[1] for one in cached],
                resumed_req_ids=set(preempted),
            ),
            num_scheduled_tokens=tokens,
            kv_connector_block_state=state,
        )

    def grow(self, req_id, tokens):
        mine = self.blocks.setdefault(req_id, [])
        while len(mine) * BLOCK < tokens:
            mine.append(self.next_block)
            self.next_block += 1


@pytest.fixture
def scheduler():
    return Scheduler()


@pytest.fixture
def tracker():
    return PromptTracker(ConnectorSettings(lease_ttl_s=7), group=1, block_size=BLOCK)


def test_a_prompt_in_one_step(scheduler, tracker):
    step = tracker.step(scheduler.step(new=[("a", [1, 2, 3, 4, 5], 0, 5)]))
    [prompt] = step.prompts
    assert (prompt.token_ids, prompt.block_ids, prompt.ttl_s) == ([1, 2, 3, 4, 5], [1, 2], 7)
    assert step.announced == [prompt.lease_id]
    assert prompt.refused is None
    assert tracker.step(scheduler.step(cached=[("a", 5, 1)])).empty
    assert tracker.finished("a") == prompt.lease_id
    assert tracker.finished("a") is None


def test_a_prompt_in_chunks(scheduler, tracker):
    prompt = list(range(10))
    first = tracker.step(scheduler.step(new=[("a", prompt, 0, 4)]))
    assert first.announced
    assert not first.prompts
    assert tracker.step(scheduler.step(cached=[("a", 4, 4)])).empty
    [done] = tracker.step(scheduler.step(cached=[("a", 8, 2)])).prompts
    assert (done.lease_id, done.block_ids) == (first.announced[0], [1, 2, 3])


def test_a_prompt_whose_beginning_is_cached(scheduler, tracker):
    [done] = tracker.step(scheduler.step(new=[("a", list(range(9)), 8, 1)])).prompts
    assert done.block_ids == [1, 2, 3]


def test_preempted_in_the_midst_of_its_prompt(scheduler, tracker):
    tracker.step(scheduler.step(new=[("a", list(range(10)), 0, 8)]))
    assert tracker.step(scheduler.step(new=[("b", [1], 0, 1)])).prompts[0].token_ids == [1]
    scheduler.blocks["a"] = []
    assert tracker.step(scheduler.step(cached=[("a", 0, 6)], preempted=["a"])).empty
    [done] = tracker.step(scheduler.step(cached=[("a", 6, 4)])).prompts
    assert done.block_ids == scheduler.blocks["a"]


def test_preempted_after_its_prompt_it_is_not_exported_twice(scheduler, tracker):
    assert tracker.step(scheduler.step(new=[("a", [1, 2], 0, 2)])).prompts
    assert tracker.step(scheduler.step(cached=[("a", 0, 5)], preempted=["a"])).empty


def test_aborted_before_its_prompt_was_complete(scheduler, tracker):
    [announced] = tracker.step(scheduler.step(new=[("a", list(range(10)), 0, 4)])).announced
    assert tracker.finished("a") is None
    assert tracker.step(scheduler.step()).withdrawn == [announced]
    assert tracker.step(scheduler.step()).empty


def test_aborted_before_it_was_scheduled(tracker):
    assert tracker.finished("never seen") is None


def test_rows_that_are_not_there(scheduler, tracker):
    scheduler.blocks["a"] = [0]
    [done] = tracker.step(scheduler.step(new=[("a", [1, 2, 3, 4, 5], 4, 1)])).prompts
    assert done.refused == MISSING_ROWS


def test_embeddings(scheduler, tracker):
    scheduled = scheduler.step(new=[("a", None, 0, 3)])
    [done] = tracker.step(scheduled).prompts
    assert done.refused == EMBEDDINGS_ONLY
    assert tracker.step(scheduler.step(cached=[("a", 3, 1)])).empty


@pytest.mark.parametrize(
    ("export", "params", "exported"),
    [
        ("all", {}, True),
        ("all", {"draftport": {"export": False}}, False),
        ("requested", {}, False),
        ("requested", {"draftport": {"export": True}}, True),
        ("requested", {"draftport": {"ticket": "t"}}, True),
        ("requested", {"draftport": "yes"}, False),
        ("requested", {"draftport": {"export": 3}}, False),
        ("all", {"draftport": {"lease_ttl_s": 1e9}}, True),
        ("all", ["draftport"], True),
    ],
)
def test_who_is_exported(scheduler, export, params, exported):
    tracker = PromptTracker(ConnectorSettings(export=export), group=1, block_size=BLOCK)
    step = tracker.step(scheduler.step(new=[("a", [1, 2], 0, 2, params)]))
    assert bool(step.prompts) == bool(step.announced) == exported


def test_a_request_sets_its_own_time(scheduler, tracker):
    [done] = tracker.step(scheduler.step(new=[("a", [1], 0, 1, {"draftport": {"lease_ttl_s": 99}})])).prompts
    assert done.ttl_s == 99
