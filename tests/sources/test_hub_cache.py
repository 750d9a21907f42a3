"""The hub cache on disk: shared with huggingface_hub, used instead of a hub that is down, off or forbidden."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import hf_hub_download, try_to_load_from_cache

from app.sources import HubEnvironment, SourceError, load_operator_config

CONFIG = b'{"a": 1}'
COMMIT = "0123456789abcdef0123456789abcdef01234567"
LATER_COMMIT = "89abcdef0123456789abcdef0123456789abcdef"


@pytest.fixture
def filled(hub, hub_cache_dir, environment, make_sources) -> Path:
    """A cache that one load has filled."""
    hub.add("org/name", {"config.json": CONFIG, "generation_config.json": b'{"g": 1}'})
    make_sources(environment, hub="on").load_sync("org/name")
    hub.requests.clear()
    return hub_cache_dir


def _code(sources, model="org/name", revision=None) -> str:
    with pytest.raises(SourceError) as caught:
        sources.load_sync(model, revision)
    return caught.value.code


def test_huggingface_hub_finds_what_was_stored(filled) -> None:
    path = try_to_load_from_cache("org/name", "config.json", cache_dir=filled)
    assert Path(path).read_bytes() == CONFIG
    assert hf_hub_download("org/name", "config.json", cache_dir=filled, local_files_only=True) == path
    assert str(Path(path).readlink()).startswith("../../blobs/")
    assert Path(path).stat().st_mode & 0o444


def test_what_huggingface_hub_stored_is_found(hub, hub_cache_dir, environment, make_sources) -> None:
    folder = hub_cache_dir / "models--org--name"
    (folder / "blobs").mkdir(parents=True)
    (folder / "blobs" / "etag").write_bytes(CONFIG)
    (folder / "snapshots" / COMMIT).mkdir(parents=True)
    (folder / "snapshots" / COMMIT / "config.json").symlink_to("../../blobs/etag")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMIT)
    loaded = make_sources(environment, hub="cache").load_sync("org/name")
    assert (loaded.revision, loaded.config, loaded.findings) == (COMMIT, {"a": 1}, ())
    assert hub.requests == []


def test_a_damaged_blob_is_replaced(filled, environment, make_sources) -> None:
    pointer = next(filled.rglob("snapshots/*/config.json"))
    pointer.resolve().write_bytes(b"{")
    make_sources(environment, hub="on").load_sync("org/name")
    assert pointer.read_bytes() == CONFIG


def test_a_stalled_hub_is_not_waited_for_again_at_once(hub, environment, make_sources) -> None:
    hub.add("org/name", {"config.json": CONFIG})
    sources = make_sources(environment, hub="on", hub_timeout_s=1.0, hub_recheck_s=0.0)
    assert sources.load_sync("org/name").findings == ()
    hub.misbehave["config.json"] = lambda handler: handler.server.release.wait(60)
    stood_in = sources.load_sync("org/name")
    assert [finding.code for finding in stood_in.findings] == ["config_from_cache"]
    assert sources.cached("org/name") is stood_in


def test_cache_mode_never_uses_the_network(hub, filled, environment, make_sources) -> None:
    sources = make_sources(environment, hub="cache")
    assert sources.load_sync("org/name").generation_config == {"g": 1}
    assert sources.load_sync("org/name", COMMIT).config == {"a": 1}
    assert sources.load_sync("org/name").token_text(0) is None
    assert _code(sources, "org/other") == "model_not_found"
    assert _code(sources, "org/name", "other") == "revision_not_found"
    assert _code(sources, "org/name", LATER_COMMIT) == "revision_not_found"
    next(filled.rglob("snapshots/*/config.json")).unlink()
    assert _code(make_sources(environment, hub="cache")) == "config_not_found"
    assert hub.requests == []


@pytest.mark.parametrize("content", [b"{", b"[]"])
def test_a_broken_file_in_the_cache(filled, environment, make_sources, content) -> None:
    next(filled.rglob("blobs/*")).parent.joinpath("x").write_bytes(content)
    pointer = next(filled.rglob("snapshots/*/config.json"))
    pointer.unlink()
    pointer.symlink_to("../../blobs/x")
    assert _code(make_sources(environment, hub="cache")) == "config_invalid"


def test_links_out_of_the_cache_are_not_followed(filled, environment, make_sources, tmp_path) -> None:
    (tmp_path / "secret.json").write_text("{}")
    pointer = next(filled.rglob("snapshots/*/config.json"))
    pointer.unlink()
    pointer.symlink_to(tmp_path / "secret.json")
    assert _code(make_sources(environment, hub="cache")) == "config_not_found"


def test_a_commit_in_the_cache_needs_no_hub(hub, filled, environment, make_sources) -> None:
    loaded = make_sources(environment, hub="on").load_sync("org/name", COMMIT)
    assert (loaded.config, loaded.findings) == ({"a": 1}, ())
    assert hub.requests == []


@pytest.mark.parametrize("trouble", ["down", 500, 429, "stall", "truncated"])
def test_a_hub_in_trouble_is_answered_for_by_the_cache(
    hub, filled, environment, make_sources, trouble
) -> None:
    if trouble == "down":
        environment = HubEnvironment(endpoint="http://127.0.0.1:1", cache_dir=filled, offline=False)
    elif trouble == "stall":
        hub.misbehave["config.json"] = lambda handler: handler.server.release.wait(60)
    elif trouble == "truncated":
        headers = {"X-Repo-Commit": LATER_COMMIT, "Content-Length": "99"}
        hub.misbehave["config.json"] = lambda handler: (
            handler.answer(200, headers),
            handler.connection.close(),
        )
    else:
        hub.misbehave["config.json"] = lambda handler: handler.answer(trouble, {})
    loaded = make_sources(environment, hub="on", hub_timeout_s=1.0).load_sync("org/name")
    assert (loaded.revision, loaded.config) == (COMMIT, {"a": 1})
    assert [(finding.code, finding.severity) for finding in loaded.findings] == [
        ("config_from_cache", "info")
    ]


@pytest.mark.parametrize(
    ("answer", "code"),
    [((401, "RepoNotFound"), "model_not_found"), ((403, "GatedRepo"), "hub_unauthorized")],
)
@pytest.mark.usefixtures("filled")
def test_what_the_hub_knows_is_not_overruled_by_the_cache(
    hub, environment, make_sources, answer, code
) -> None:
    status, error_code = answer
    hub.misbehave["config.json"] = lambda handler: handler.answer(status, {"X-Error-Code": error_code})
    assert _code(make_sources(environment, hub="on")) == code


def test_offline(hub, filled, environment, make_sources) -> None:
    offline = HubEnvironment(endpoint=environment.endpoint, cache_dir=filled, offline=True)
    sources = make_sources(offline, hub="on")
    loaded = sources.load_sync("org/name")
    assert [finding.code for finding in loaded.findings] == ["config_from_cache"]
    assert loaded.token_text(0) is None
    assert _code(sources, "org/other") == "hub_unreachable"
    assert hub.requests == []


def test_a_cache_that_cannot_be_written_is_no_trouble(hub, tmp_path, make_sources) -> None:
    (tmp_path / "file").write_text("in the way")
    environment = HubEnvironment(endpoint=hub.endpoint, cache_dir=tmp_path / "file" / "hub", offline=False)
    hub.add("org/name", {"config.json": CONFIG})
    sources = make_sources(environment, hub="on", hub_recheck_s=0.0, hub_down_recheck_s=0.0)
    first = sources.load_sync("org/name")
    assert first.config == {"a": 1}
    # Nothing on disk, but memory still has the last answer.
    hub.misbehave["config.json"] = lambda handler: handler.answer(500, {})
    later = sources.load_sync("org/name")
    assert (later.config, [f.code for f in later.findings]) == ({"a": 1}, ["config_from_cache"])
    again = sources.load_sync("org/name")
    assert [f.code for f in again.findings] == ["config_from_cache"]
    hub.misbehave.clear()
    assert sources.load_sync("org/name").findings == ()


@pytest.mark.parametrize("etag", ["../../../../evil", "a/b", "", ".", 'W/"' + "x" * 300 + '"'])
def test_an_odd_etag_becomes_no_file_name(hub, environment, make_sources, etag, tmp_path) -> None:
    headers = {"X-Repo-Commit": COMMIT, "ETag": etag}
    hub.misbehave["config.json"] = lambda handler: handler.answer(200, headers, CONFIG)
    hub.misbehave["generation_config.json"] = lambda handler: handler.answer(
        404, {"X-Error-Code": "EntryNotFound"}
    )
    assert make_sources(environment, hub="on").load_sync("org/name").config == {"a": 1}
    assert not list(tmp_path.rglob("blobs"))
    assert not list(tmp_path.rglob("evil"))


def test_a_file_that_does_not_exist_is_not_asked_for_twice(hub, environment, make_sources) -> None:
    hub.add("org/name", {"config.json": CONFIG})
    for _ in range(2):
        make_sources(environment, hub="on").load_sync("org/name").token_text(0)
    assert hub.names().count("generation_config.json") == 1
    assert hub.names().count("tokenizer.json") == 1


def test_the_operators_settings_of_huggingface_hub_are_respected(hub, tmp_path) -> None:
    """In a process of its own, as huggingface_hub reads its settings when imported."""
    hub.add("org/name", {"config.json": CONFIG})
    script = """
import asyncio, json, sys
from app.sources import ModelSources, SourceError, SourceSettings
assert not {"huggingface_hub", "httpx", "httpx2", "fastapi", "torch"} & set(sys.modules)
async def main():
    try:
        loaded = await ModelSources(SourceSettings(hub="on")).load("org/name")
        print(json.dumps([loaded.revision, [f.code for f in loaded.findings]]))
    except SourceError as error:
        print(json.dumps(error.code))
asyncio.run(main())
"""

    def run(**variables):
        keep = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
        environment = keep | {"HF_HOME": str(tmp_path / "home"), "HF_ENDPOINT": hub.endpoint} | variables
        done = subprocess.run(
            [sys.executable, "-c", script],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        return json.loads(done.stdout)

    assert run(HF_HUB_OFFLINE="1") == "hub_unreachable"
    assert hub.requests == []
    assert run(HF_TOKEN="hf_own") == [COMMIT, []]
    assert [headers["authorization"] for _, headers in hub.requests] == ["Bearer hf_own"] * 2
    assert hub.names() == ["config.json", "generation_config.json"]
    assert (tmp_path / "home" / "hub" / "models--org--name" / "refs" / "main").read_text() == COMMIT
    hub.requests.clear()
    assert run(HF_TOKEN="hf_own", HF_HUB_DISABLE_IMPLICIT_TOKEN="1") == [COMMIT, []]
    assert [headers.get("authorization") for _, headers in hub.requests] == [None]
    hub.requests.clear()
    assert run(HF_HUB_OFFLINE="1") == [COMMIT, ["config_from_cache"]]
    assert hub.requests == []


def test_operator_config_from_the_hub(hub, environment) -> None:
    hub.add("org/name", {"config.json": CONFIG})
    assert load_operator_config("org/name", environment=environment).revision == COMMIT
    hub.requests.clear()
    assert load_operator_config("org/name", hub="cache", environment=environment).revision == COMMIT
    assert hub.requests == []
    with pytest.raises(SourceError) as caught:
        load_operator_config("org/name", hub="off", environment=environment)
    assert caught.value.code == "model_not_allowed"


def test_operator_config_from_any_directory(tmp_path, write_model, monkeypatch) -> None:
    model = write_model(tmp_path / "a" / "m", {"a": 1})
    (tmp_path / "link").symlink_to(model)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "a"))
    for spelling in (str(model), "a/m", "./a/../link", "~/m"):
        assert load_operator_config(spelling, hub="off").config == {"a": 1}
    with pytest.raises(SourceError) as caught:
        load_operator_config(str(tmp_path / "missing"))
    assert caught.value.code == "model_not_found"
    for nonsense in ("", "a\0b", "./missing"):
        with pytest.raises(SourceError) as caught:
            load_operator_config(nonsense)
        assert caught.value.code == "invalid_request"


def test_load_sync_refuses_to_block_a_loop(make_sources, environment) -> None:
    sources = make_sources(environment, hub="on")

    async def wrong():
        sources.load_sync("org/name")

    with pytest.raises(RuntimeError):
        asyncio.run(wrong())
