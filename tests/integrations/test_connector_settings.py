"""Settings of vLLM's connector, and the layers that it lets pass."""

import pytest

from app.integrations.vllm.layer_order import asked_points, stored_positions
from app.integrations.vllm.settings import connector_settings


def test_defaults_and_values(tmp_path, monkeypatch):
    assert connector_settings({}).slots == 8
    settings = connector_settings({"socket_path": "/run/x/worker.sock", "lease_ttl_s": 5})
    assert str(settings.socket_of(0, 1)) == "/run/x/worker.sock"
    assert str(settings.socket_of(3, 4)) == "/run/x/worker-3.sock"
    monkeypatch.setenv("VLLM_API_KEY", "of the environment")
    assert settings.api_key() == "of the environment"
    key_file = tmp_path / "key"
    key_file.write_text("of the file\n")
    assert connector_settings({"api_key_file": str(key_file)}).api_key() == "of the file"


@pytest.mark.parametrize(
    "extra",
    [
        {"slot": 1},
        {"slots": 0},
        {"slots": "8"},
        {"lease_ttl_s": 0.5},
        {"export": "some"},
        {"rows_per_slot": 0},
    ],
)
def test_what_does_not_fit_is_named(extra):
    with pytest.raises(ValueError, match=next(iter(extra))):
        connector_settings(extra)


@pytest.mark.parametrize("ids", [[4, 0, 2], [0, 1, 2, 3, 4], [4], (3, 1)])
def test_positions_undo_vllms_sorting(ids):
    points = asked_points(ids, 4)
    stored = sorted(ids)
    assert [stored[position] for position in stored_positions(points)] == list(ids)


@pytest.mark.parametrize(
    ("ids", "sentence"),
    [
        (None, "must list"),
        ([], "must list"),
        ("123", "must list"),
        ([1.5], "integers"),
        ([1, "2"], "integers"),
        ([1, 1], "repeat"),
        ([5], "outside"),
        ([-1], "outside"),
    ],
)
def test_layers_that_vllm_would_get_wrong(ids, sentence):
    with pytest.raises(ValueError, match=sentence):
        asked_points(ids, 4)
