"""``get_drafter_hidden_states``: the model's wide buffer as a view, or the very input."""

import subprocess
import sys

import pytest

from app.drafting.hidden_states import get_drafter_hidden_states

torch = pytest.importorskip("torch")
torch.set_num_threads(1)


class Target:
    def __init__(self, buffer):
        self.buffer = buffer

    def get_mtp_target_hidden_states(self):
        return self.buffer


@pytest.fixture
def hidden_states():
    return torch.zeros(3, 4)


def test_no_hook_gives_the_input(hidden_states):
    assert get_drafter_hidden_states(torch.nn.Linear(1, 1), hidden_states) is hidden_states
    assert get_drafter_hidden_states(object(), hidden_states) is hidden_states


def test_none_gives_the_input(hidden_states):
    assert get_drafter_hidden_states(Target(None), hidden_states) is hidden_states
    model = torch.nn.Module()
    model.get_mtp_target_hidden_states = None
    assert get_drafter_hidden_states(model, hidden_states) is hidden_states


@pytest.mark.parametrize("num_tokens", [0, 1, 3, 8])
def test_rows_are_a_view_of_the_buffer(num_tokens):
    buffer = torch.arange(64.0, dtype=torch.bfloat16).reshape(8, 8)
    rows = get_drafter_hidden_states(Target(buffer), torch.zeros(num_tokens, 4))
    assert rows.shape == (num_tokens, 8)
    assert rows.dtype == torch.bfloat16
    assert rows.untyped_storage().data_ptr() == buffer.untyped_storage().data_ptr()
    buffer.fill_(7)
    assert torch.equal(rows, torch.full_like(rows, 7))


def test_streams_may_be_an_axis_of_their_own(hidden_states):
    rows = get_drafter_hidden_states(Target(torch.zeros(5, 2, 4)), hidden_states)
    assert rows.shape == (3, 2, 4)


def test_a_short_buffer_gives_what_it_has(hidden_states):
    assert get_drafter_hidden_states(Target(torch.zeros(2, 8)), hidden_states).shape == (2, 8)


def test_a_hook_that_can_not_be_called(hidden_states):
    model = torch.nn.Module()
    model.get_mtp_target_hidden_states = 7
    with pytest.raises(TypeError):
        get_drafter_hidden_states(model, hidden_states)


def test_the_domain_needs_neither_torch_nor_a_web_framework():
    code = (
        "import sys, app.drafting.hidden_states, app.drafting.mask_token_answer, app.drafting.load_config_answer;"
        "print([name for name in ('torch', 'fastapi', 'transformers', 'numpy') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.strip() == "[]"
