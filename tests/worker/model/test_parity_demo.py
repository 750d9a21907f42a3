"""The demo target's rows against a plain transformers forward of each prompt alone."""

from __future__ import annotations

import pytest
import torch

LENGTHS = [
    1,
    2,
    3,
    5,
    8,
    13,
    21,
    34,
    55,
    63,
    64,
    65,
    89,
    127,
    128,
    129,
    144,
    200,
    233,
    256,
    311,
    377,
    499,
    500,
]


@pytest.mark.parametrize("capture", ["final", "aux_layers"])
def test_rows_of_1_to_500_tokens_equal_a_lone_forward(capture, demo_dir, targets, prompting):
    plan, target = targets.load(
        demo_dir, capture=capture, aux_layer_ids=(1, 3) if capture == "aux_layers" else None
    )
    model = targets.reference(demo_dir).model
    prompts = prompting.prompts(LENGTHS, vocab_size=257)
    expected = []
    with torch.no_grad():
        for prompt in prompts:
            output = model(torch.tensor([prompt]), output_hidden_states=True)
            layers = output.hidden_states
            expected.append(
                output.last_hidden_state[0]
                if capture == "final"
                else torch.cat([layers[1][0], layers[3][0]], dim=-1)
            )

    assert prompting.difference(prompting.run(plan, target, prompts, batched=True), expected) <= 1e-5
    assert prompting.difference(prompting.run(plan, target, prompts, batched=False), expected) <= 1e-5


def test_rows_may_be_any_view_of_the_slab(demo_dir, targets, prompting):
    """Rows of several prompts side by side in one buffer of bytes, as a slot holds them."""
    plan, target = targets.load(demo_dir)
    prompts = prompting.prompts([7, 3, 11], vocab_size=257)
    slot = torch.zeros(25 * plan.row_bytes, dtype=torch.uint8)
    matrix = slot.view(torch.float32).view(25, plan.width)
    rows = [matrix[0:7], matrix[7:10], matrix[10:21]]
    lone = [torch.empty(len(prompt), plan.width) for prompt in prompts]

    target.run_step(prompts, rows)
    for prompt, out in zip(prompts, lone, strict=True):
        target.run_step([prompt], [out])

    assert torch.allclose(matrix[:21], torch.cat(lone), rtol=1e-4, atol=1e-5)
    assert not matrix[21:].any()


def test_any_text_can_be_encoded(demo_dir, targets):
    _, target = targets.load(demo_dir)
    texts = ["", "Hello", "naïve 日本 \n\t", "<|endoftext|>"]

    ids = target.encode(texts)

    assert [len(row) for row in ids] == [0, 5, len("naïve 日本 \n\t".encode()), 1]
    assert all(0 <= token < target.description.vocab_size for row in ids for token in row)
