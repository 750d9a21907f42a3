"""Wide residuals with a stand-in for a target that keeps them: what vLLM itself does with one is not proven by this."""

from types import SimpleNamespace

import pytest
import torch
from test_exporter import vllm_config

from app.export.leases import new_lease_id
from app.integrations.vllm import wide_source
from app.integrations.vllm.prompt_tracker import NOT_WHOLE, PromptTracker
from app.integrations.vllm.settings import ConnectorSettings
from app.integrations.vllm.step import Prompt, Step
from app.integrations.vllm.wide_source import WideSource
from app.integrations.vllm.worker_side import WorkerSide
from app.reader import Region, RemoteError

WIDTH = 32


class Target:
    """Keeps the rows of a step of up to 64 tokens, and overwrites them with the next."""

    def __init__(self):
        self.buffer = torch.full((64, WIDTH), float("nan"), dtype=torch.bfloat16)

    def get_mtp_target_hidden_states(self):
        return self.buffer

    def forward(self, token_ids):
        self.buffer[: len(token_ids)] = rows_of(token_ids)


def rows_of(token_ids):
    return torch.tensor(token_ids, dtype=torch.bfloat16)[:, None].expand(-1, WIDTH)


def prompt_of(req_id, token_ids):
    return Prompt(new_lease_id(), req_id, token_ids, [], 30.0)


@pytest.fixture
def exported(tmp_path):
    target = Target()
    settings = ConnectorSettings(socket_path=str(tmp_path / "w.sock"), slots=2, capture="pre_hc_head")
    side = WorkerSide(vllm_config(), settings, WideSource(target))
    with Region.attach(tmp_path / "w.sock") as region:
        yield SimpleNamespace(target=target, side=side, region=region)
    side.stop()


def test_rows_are_copied_from_where_the_step_has_them(exported):
    layout = exported.region.target.hidden_states
    assert (layout.source, layout.width, layout.dtype, layout.norm) == (
        "pre_hc_head",
        WIDTH,
        "bfloat16",
        "pre",
    )
    first, other, second = prompt_of("a", [1, 2, 3]), [9, 9], prompt_of("c", [4, 5])
    step = Step(announced=[first.lease_id, second.lease_id], prompts=[first, second])
    exported.side.begin(step)
    exported.target.forward(
        [*second.token_ids, *other, *first.token_ids]
    )  # the runner's order, not the scheduler's
    scheduled = SimpleNamespace(num_scheduled_tokens={"a": 3, "b": 2, "c": 2})
    exported.side.note_step(scheduled, ["c", "b", "a"])
    exported.side.end(step)
    exported.target.forward([77] * 7)
    for prompt in (first, second):
        with exported.region.open(prompt.lease_id) as lease:
            assert torch.equal(lease.tensor(), rows_of(prompt.token_ids))


def test_a_step_whose_order_is_unknown_gives_no_rows(exported):
    prompt = prompt_of("a", [1])
    step = Step(announced=[prompt.lease_id], prompts=[prompt])
    exported.side.begin(step)
    exported.side.end(step)
    with pytest.raises(RemoteError) as failed:
        exported.region.open(prompt.lease_id)
    assert failed.value.code == "worker_error"


def test_only_prompts_of_one_step_can_be_had():
    tracker = PromptTracker(ConnectorSettings(capture="pre_hc_head"), group=None, block_size=0)

    def step(new, tokens, cached=()):
        requests = [
            SimpleNamespace(
                req_id=name,
                prompt_token_ids=list(range(10)),
                prompt_embeds=None,
                num_computed_tokens=computed,
                sampling_params=None,
            )
            for name, computed in new
        ]
        names, computed = zip(*cached, strict=True) if cached else ((), ())
        old = SimpleNamespace(req_ids=list(names), num_computed_tokens=list(computed), resumed_req_ids=set())
        return tracker.step(
            SimpleNamespace(
                scheduled_new_reqs=requests, scheduled_cached_reqs=old, num_scheduled_tokens=tokens
            )
        )

    whole, cached = step([("a", 0), ("b", 8), ("c", 0)], {"a": 10, "b": 2, "c": 4}).prompts
    assert (whole.refused, cached.refused) == (None, NOT_WHOLE)
    [chunked] = step([], {"c": 6}, cached=[("c", 4)]).prompts
    assert chunked.refused == NOT_WHOLE


@pytest.mark.parametrize("model", [object(), SimpleNamespace(get_mtp_target_hidden_states=lambda: None)])
def test_a_target_that_keeps_none_is_refused(model):
    with pytest.raises(ValueError, match="keeps no state"):
        WideSource(model)


def test_without_our_worker_class_it_says_which():
    with pytest.raises(ValueError, match="WideResidualWorker"):
        wide_source.noted_target()
    wide_source.note_target("a model")
    assert wide_source.noted_target() == "a model"
    wide_source._target.clear()
