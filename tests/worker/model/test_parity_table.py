"""Captured rows of many architectures against transformers' own output_hidden_states, or a hook on hc_head."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest
import torch

from app.worker import forward

ROWS = [
    (name, capture)
    for name in (
        "qwen3",
        "llama",
        "gemma3_text",
        "gemma3",
        "qwen3_moe",
        "gpt_oss",
        "qwen3_next",
        "falcon_h1",
        "deepseek_v3",
        "deepseek_v4",
        "bidirectional",
    )
    for capture in ("final", "aux_layers")
] + [("deepseek_v4", "pre_hc_head"), ("qwen4_exp_text", "final"), ("qwen4_exp_text", "pre_hc_head")]
# Not in order, and with both ends: the embeddings, and the last layer's output before the final norm.
POINTS = (4, 0, 2)
LENGTHS = [1, 2, 3, 15, 16, 17, 33, 40, 40, 64, 65, 100, 129]
BATCHING = {
    "bidirectional": "equal_lengths",
    "deepseek_v4": "equal_lengths",
    "qwen4_exp_text": "equal_lengths",
}
TOLERANCE = 1e-5
SIXTEEN_BIT_TOLERANCE = {"float16": 1e-2, "bfloat16": 5e-2}


def _expected(model: Any, prompts: list[list[int]], capture: str) -> list[torch.Tensor]:
    """What transformers gives for each prompt alone; capture point n by a hook, as it records that one normed."""
    text = model.get_decoder()
    seen: dict[str, torch.Tensor] = {}
    with ExitStack() as hooks:
        head = getattr(text, "hc_head", None) or getattr(text, "hyper_connection_mixer", None)
        if capture == "pre_hc_head":
            hooks.callback(
                head.register_forward_pre_hook(lambda _m, args: seen.update(streams=args[0])).remove
            )
        last = text.layers[-1]
        hooks.callback(
            last.register_forward_hook(
                lambda _m, _a, out: seen.update(last=out[0] if isinstance(out, tuple) else out)
            ).remove
        )
        return [_expected_rows(text, prompt, capture, seen) for prompt in prompts]


def _expected_rows(text: Any, prompt: list[int], capture: str, seen: dict[str, torch.Tensor]) -> torch.Tensor:
    with torch.no_grad():
        output = text(input_ids=torch.tensor([prompt]), output_hidden_states=True, use_cache=False)
    if capture == "final":
        return output.last_hidden_state[0]
    if capture == "pre_hc_head":
        return seen["streams"][0].reshape(len(prompt), -1)
    streams = [seen["last"] if point == 4 else output.hidden_states[point] for point in POINTS]
    return torch.cat([s[0].mean(-2) if s.dim() == 4 else s[0] for s in streams], dim=-1)


@pytest.fixture(scope="module")
def table(request):
    """Collects the measured lines; printed when the module's tests are over, captured output or not."""
    lines: list[str] = []
    yield lines
    terminal = request.config.pluginmanager.getplugin("terminalreporter")
    terminal.write_line("\nlargest difference to transformers, relative to the largest element (float32)")
    terminal.write_line(f"{'architecture':16}{'capture':14}{'batching':16}{'lone':>10}{'batched':>10}")
    terminal.write_line("\n".join(lines))


@pytest.fixture
def one_group(monkeypatch):
    """Everything that may be padded at all shares one forward: the hardest case."""
    monkeypatch.setitem(forward.FORWARD_COST, "cpu", 1_000_000)


@pytest.mark.parametrize(("name", "capture"), ROWS)
@pytest.mark.usefixtures("one_group")
def test_rows_equal_transformers(name, capture, table, targets, prompting):
    directory = targets.checkpoint(name)
    points = POINTS if capture == "aux_layers" else None
    plan, target = targets.load(directory, capture=capture, aux_layer_ids=points)
    prompts = prompting.prompts(LENGTHS)
    expected = _expected(targets.reference(directory), prompts, capture)

    lone = prompting.difference(prompting.run(plan, target, prompts, batched=False), expected)
    batched = prompting.difference(prompting.run(plan, target, prompts, batched=True), expected)
    table.append(f"{name:16}{capture:14}{target.batching:16}{lone:>10.1e}{batched:>10.1e}")

    assert target.batching == BATCHING.get(name, "padded")
    assert lone <= TOLERANCE
    assert batched <= TOLERANCE


@pytest.mark.parametrize(
    ("name", "dtype"),
    # transformers 5.24 itself can't run DeepSeek V4 in float16: parts of it stay float32.
    [(n, "float16") for n in ("qwen3", "gemma3_text", "qwen3_next")]
    + [(n, "bfloat16") for n in ("qwen3", "gemma3_text", "qwen3_next", "deepseek_v4")],
)
def test_sixteen_bit_rows_stay_within_rounding(name, dtype, targets, prompting):
    plan, target = targets.load(targets.checkpoint(name), dtype=dtype)
    prompts = prompting.prompts([1, 7, 40, 40, 64])

    lone = prompting.run(plan, target, prompts, batched=False)
    batched = prompting.run(plan, target, prompts, batched=True)

    assert plan.dtype == dtype
    assert {rows.dtype for rows in batched} == {getattr(torch, dtype)}
    assert prompting.difference(batched, lone) <= SIXTEEN_BIT_TOLERANCE[dtype]


def test_point_n_is_the_last_layers_output_before_the_norm(targets, prompting):
    directory = targets.checkpoint("qwen3")
    prompts = prompting.prompts([9])
    plan, target = targets.load(directory, capture="aux_layers", aux_layer_ids=(4,))
    model = targets.reference(directory).model
    with torch.no_grad():
        recorded = model(torch.tensor(prompts), output_hidden_states=True).hidden_states[4][0]
        [rows] = prompting.run(plan, target, prompts, batched=False)

        assert not torch.allclose(rows, recorded, rtol=0.1)
        assert torch.allclose(model.norm(rows), recorded, rtol=1e-4, atol=1e-5)


def test_columns_come_in_the_order_asked_for(targets, prompting):
    prompts = prompting.prompts([12, 5])
    alone = {}
    for point in (0, 1, 3, 4):
        plan, target = targets.load(targets.checkpoint("llama"), capture="aux_layers", aux_layer_ids=(point,))
        alone[point] = prompting.run(plan, target, prompts, batched=True)

    for order in ((3, 0, 4, 1), (1, 3), (3, 1)):
        plan, target = targets.load(targets.checkpoint("llama"), capture="aux_layers", aux_layer_ids=order)
        rows = prompting.run(plan, target, prompts, batched=True)

        assert plan.description.hidden_states.capture_points == list(order)
        assert plan.width == 64 * len(order)
        for index, got in enumerate(rows):
            assert torch.equal(got, torch.cat([alone[point][index] for point in order], dim=-1))
