"""Hub ids over REST, from a hub of our own: found, refused, unreachable, cached."""

import json

import pytest

CONFIG = json.dumps({"architectures": ["DFlashDraftModel"], "dflash_config": {"mask_token_id": 11}}).encode()


@pytest.fixture
def with_hub(start_service, hub, tmp_path, monkeypatch):
    """``with_hub(**settings)``: a service that asks ``hub``, which has ``org/drafter``."""
    hub.add("org/drafter", {"config.json": CONFIG})
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    return lambda **settings: start_service(WORKER="off", **settings)


def ask(service, model="org/drafter", **query):
    return service.http.get("/v1/mask-token", params={"model": model, **query})


def test_a_repo_is_read_and_its_commit_named(with_hub, hub, is_problem):
    service = with_hub(HUB="on")
    answer = ask(service).json()
    assert answer["mask_token_id"] == 11
    assert answer["model"]["id"] == "org/drafter"
    assert len(answer["model"]["revision"]) == 40
    assert not [name for name in hub.names() if name.endswith((".safetensors", ".bin", ".py"))]
    is_problem(ask(service, "org/missing"), 404, "model_not_found")
    is_problem(ask(service, revision="missing"), 404, "revision_not_found")
    hub.add("org/empty", {"README.md": b""})
    is_problem(ask(service, "org/empty"), 404, "config_not_found")
    hub.add("org/broken", {"config.json": b"{"})
    is_problem(ask(service, "org/broken"), 422, "config_invalid")


def test_off_and_allow_list(with_hub, is_problem):
    is_problem(ask(with_hub(HUB="off")), 403, "model_not_allowed")
    limited = with_hub(HUB="on", HUB_ALLOW="org/*")
    assert ask(limited).status_code == 200
    is_problem(ask(limited, "other/drafter"), 403, "model_not_allowed")


def test_cache_mode_asks_nobody(with_hub, hub, is_problem):
    service = with_hub(HUB="cache")
    assert ask(service).status_code == 404
    assert hub.requests == []


def test_a_hub_that_is_down_or_hangs(with_hub, hub, is_problem):
    service = with_hub(HUB="on", HUB_TIMEOUT_S="1")
    hub.misbehave["config.json"] = lambda _: hub.release.wait(20)
    is_problem(ask(service), 504, "hub_timeout")
    hub.misbehave["config.json"] = lambda handler: handler.answer(503, {})
    is_problem(ask(service, "org/other"), 502, "hub_unreachable")
    hub.misbehave["config.json"] = lambda handler: handler.answer(401, {"X-Error-Code": "GatedRepo"})
    is_problem(ask(service, "org/gated"), 502, "hub_unauthorized")
    assert service.http.post("/v1/mask-token", json={"config": {"mask_token_id": 1}}).status_code == 200
