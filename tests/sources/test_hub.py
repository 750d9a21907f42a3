from __future__ import annotations

import asyncio
import json
import threading

import msgspec
import pytest

from app.sources import SourceError

CONFIG = b'{"model_type": "dflash", "x": NaN}'
COMMIT = "0123456789abcdef0123456789abcdef01234567"
LATER_COMMIT = "89abcdef0123456789abcdef0123456789abcdef"


@pytest.fixture
def make_hub_sources(make_sources, environment):
    def make(**settings):
        defaults = {"hub": "on", "hub_timeout_s": 20.0, "hub_error_recheck_s": 0.0}
        return make_sources(environment, **(defaults | settings))

    return make


@pytest.fixture
def code_of(make_hub_sources):
    def code_of(model: str = "org/name", revision: str | None = None, **settings) -> str:
        with pytest.raises(SourceError) as caught:
            make_hub_sources(**settings).load_sync(model, revision)
        assert "127.0.0.1" not in caught.value.detail
        return caught.value.code

    return code_of


def test_a_hub_repo(hub, make_hub_sources) -> None:
    hub.add("org/name", {"config.json": CONFIG, "generation_config.json": b'{"eos_token_id": 2}'})
    loaded = make_hub_sources().load_sync("org/name")
    assert (loaded.id, loaded.revision) == ("org/name", COMMIT)
    assert loaded.config["model_type"] == "dflash"
    assert loaded.generation_config == {"eos_token_id": 2}
    assert loaded.findings == ()


def test_only_small_files_are_asked_for(hub, make_hub_sources) -> None:
    files = dict.fromkeys(("model.safetensors", "modeling_x.py", "tokenizer.json", "README.md"), b"{}")
    hub.add("org/name", {"config.json": b'{"auto_map": {"AutoModel": "modeling_x.X"}}', **files})
    make_hub_sources().load_sync("org/name")
    assert hub.names() == ["config.json", "generation_config.json"]


def test_revisions(hub, make_hub_sources) -> None:
    hub.add("org/name", {"config.json": CONFIG})
    hub.refs["org/name"]["refs/pr/1"] = LATER_COMMIT
    sources = make_hub_sources()
    assert sources.load_sync("org/name", "refs/pr/1").revision == LATER_COMMIT
    assert sources.load_sync("org/name", COMMIT).revision == COMMIT
    assert sources.load_sync("org/name").revision == COMMIT


def test_a_missing_revision(hub, code_of) -> None:
    hub.add("org/name", {"config.json": CONFIG})
    assert code_of(revision="missing") == "revision_not_found"


def test_a_missing_config(hub, code_of) -> None:
    hub.add("org/name", {})
    assert code_of() == "config_not_found"


def test_a_missing_repo(code_of) -> None:
    assert code_of() == "model_not_found"


@pytest.mark.parametrize(
    ("status", "headers", "code"),
    [
        (401, {}, "model_not_found"),
        (401, {"X-Error-Code": "RepoNotFound"}, "model_not_found"),
        (404, {"X-Error-Code": "RepoNotFound"}, "model_not_found"),
        (404, {}, "model_not_found"),
        (401, {"X-Error-Code": "GatedRepo"}, "hub_unauthorized"),
        (403, {"X-Error-Code": "GatedRepo"}, "hub_unauthorized"),
        (403, {}, "hub_unauthorized"),
        (404, {"X-Error-Code": "RevisionNotFound"}, "revision_not_found"),
        (404, {"X-Error-Code": "EntryNotFound"}, "config_not_found"),
        (500, {}, "hub_unreachable"),
        (503, {}, "hub_unreachable"),
        (429, {}, "hub_unreachable"),
        (400, {}, "hub_unreachable"),
        (204, {}, "hub_unreachable"),
        (304, {}, "hub_unreachable"),
        (200, {}, "hub_unreachable"),
        (200, {"X-Repo-Commit": "../../../etc"}, "hub_unreachable"),
        (200, {"X-Repo-Commit": COMMIT, "Content-Encoding": "gzip"}, "hub_unreachable"),
        (200, {"X-Repo-Commit": COMMIT}, "config_invalid"),
    ],
)
def test_what_the_hub_says(hub, code_of, status, headers, code) -> None:
    hub.misbehave["config.json"] = lambda handler: handler.answer(status, headers)
    assert code_of() == code


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "17"}, 17.0),
        ({"Retry-After": "999999"}, 3600.0),
        ({"Retry-After": "Wed, 21 Oct 2015"}, None),
        ({"RateLimit": '"resolvers";r=0;t=55'}, 55.0),
        ({}, None),
    ],
)
def test_a_rate_limit_says_when_to_come_back(hub, make_hub_sources, headers, seconds) -> None:
    hub.misbehave["config.json"] = lambda handler: handler.answer(429, headers)
    with pytest.raises(SourceError) as caught:
        make_hub_sources().load_sync("org/name")
    assert caught.value.retry_after_s == seconds


@pytest.mark.parametrize("text", [b"", b"[]", b"<html>", b'{"a": "\\ud800"}', b'{"a":' * 1000])
def test_an_invalid_config_is_told_and_not_cached(hub, code_of, hub_cache_dir, text) -> None:
    hub.add("org/name", {"config.json": text})
    assert code_of() == "config_invalid"
    assert not [path for path in hub_cache_dir.rglob("*") if path.is_file()]


def test_the_hub_may_be_off(make_sources) -> None:
    with pytest.raises(SourceError, match="DRAFTPORT_HUB") as caught:
        make_sources().load_sync("org/name")
    assert caught.value.code == "model_not_allowed"


def test_the_allow_list(hub, code_of, make_hub_sources) -> None:
    hub.add("org/name", {"config.json": CONFIG})
    assert code_of(hub_allow=("other/*", "Org/*")) == "model_not_allowed"
    assert hub.requests == []
    assert make_hub_sources(hub_allow=("other/*", "org/na*")).load_sync("org/name").revision == COMMIT


def test_a_renamed_repo_is_followed_unless_the_allow_list_forbids(hub, code_of, make_hub_sources) -> None:
    hub.add("new/name", {"config.json": CONFIG})
    target = "/new/name/resolve/main/"

    def moved(handler) -> None:
        if handler.path.startswith("/org/"):
            handler.answer(307, {"Location": target + handler.path.rsplit("/", 1)[1]})
        else:
            handler.answer(200, handler.headers_of(CONFIG), CONFIG)

    hub.misbehave["config.json"] = moved
    assert code_of(hub_allow=("org/*",)) == "model_not_allowed"
    loaded = make_hub_sources().load_sync("org/name")
    assert (loaded.id, loaded.revision) == ("org/name", COMMIT)


def test_the_token_goes_to_the_hub_only(hub, make_hub_sources, monkeypatch) -> None:
    """A large file lies at another host, which gets no token, and whose headers don't describe the file."""
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.add("org/name", {"config.json": CONFIG})
    elsewhere = hub.endpoint.replace("127.0.0.1", "localhost") + "/c/d/resolve/0/blob"
    linked = {"X-Repo-Commit": COMMIT, "X-Linked-Etag": '"abc"', "X-Linked-Size": str(len(CONFIG))}
    hub.misbehave["config.json"] = lambda handler: handler.answer(302, {"Location": elsewhere, **linked})
    hub.misbehave["blob"] = lambda handler: handler.answer(200, {"ETag": "other"}, CONFIG)
    assert make_hub_sources().load_sync("org/name").revision == COMMIT
    tokens = {path.rsplit("/", 1)[1]: headers.get("authorization") for path, headers in hub.requests}
    assert tokens["config.json"] == "Bearer hf_secret"
    assert tokens["blob"] is None


def test_a_refused_token(hub, code_of, monkeypatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.misbehave["config.json"] = lambda handler: handler.answer(401, {})
    assert code_of() == "hub_unauthorized"
    hub.misbehave["config.json"] = lambda handler: handler.answer(401, {"X-Error-Code": "RepoNotFound"})
    assert code_of() == "model_not_found"


def test_a_broken_token_is_not_sent(hub, code_of, monkeypatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_é\u2028x")
    assert code_of() == "hub_unauthorized"
    assert hub.requests == []


def test_trouble_with_the_generation_config_is_a_finding(hub, make_hub_sources) -> None:
    hub.add("org/name", {"config.json": CONFIG})
    hub.misbehave["generation_config.json"] = lambda handler: handler.answer(500, {})
    loaded = make_hub_sources().load_sync("org/name")
    assert loaded.generation_config is None
    assert [finding.code for finding in loaded.findings] == ["generation_config_unavailable"]


def test_a_stall_at_the_generation_config_does_not_spoil_the_load(hub, make_hub_sources) -> None:
    hub.add("org/name", {"config.json": CONFIG})
    hub.misbehave["generation_config.json"] = lambda handler: handler.server.release.wait(60)
    loaded = make_hub_sources(hub_timeout_s=1.5).load_sync("org/name")
    assert [finding.code for finding in loaded.findings] == ["generation_config_unavailable"]


def test_concurrent_requests_share_one_load(hub, make_hub_sources) -> None:
    hub.add("org/name", {"config.json": CONFIG})
    arrived = threading.Event()
    sources = make_hub_sources()

    def slowly(handler) -> None:
        arrived.set()
        handler.server.release.wait(30)
        handler.answer(200, handler.headers_of(CONFIG), CONFIG)

    hub.misbehave["config.json"] = slowly

    async def many():
        tasks = [asyncio.create_task(sources.load("org/name")) for _ in range(50)]
        await asyncio.to_thread(arrived.wait, 30)
        # Whoever started the load may give up; the others still get it.
        tasks[0].cancel()
        hub.release.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    first, *others = asyncio.run(many())
    assert isinstance(first, asyncio.CancelledError)
    assert {id(loaded) for loaded in others} == {id(others[0])}
    assert others[0].revision == COMMIT
    assert hub.names().count("config.json") == 1


def test_concurrent_failures_are_separate_exceptions(make_hub_sources) -> None:
    sources = make_hub_sources()

    async def many():
        return await asyncio.gather(*(sources.load("org/name") for _ in range(3)), return_exceptions=True)

    errors = asyncio.run(many())
    assert [error.code for error in errors] == ["model_not_found"] * 3
    assert len({id(error) for error in errors}) == 3


def test_the_number_of_loads_at_the_hub_is_bounded(hub, make_hub_sources) -> None:
    sources = make_hub_sources(hub_concurrency=2)
    lock = threading.Lock()
    now = most = 0

    def counted(handler) -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        # Long enough that a third one would be seen, were it let in.
        handler.server.release.wait(0.1)
        with lock:
            now -= 1
        handler.answer(200, handler.headers_of(CONFIG), CONFIG)

    hub.misbehave["config.json"] = counted
    hub.misbehave["generation_config.json"] = lambda handler: handler.answer(
        404, {"X-Error-Code": "EntryNotFound"}
    )

    async def many():
        return await asyncio.gather(*(sources.load(f"org/name{index}") for index in range(6)))

    assert len(asyncio.run(many())) == 6
    assert 1 <= most <= 2


def test_a_refusal_is_remembered_for_a_moment(hub, make_hub_sources) -> None:
    sources = make_hub_sources(hub_error_recheck_s=3600)

    async def twice():
        for _ in range(2):
            with pytest.raises(SourceError):
                await sources.load("org/name")

    asyncio.run(twice())
    assert len(hub.requests) == 1


def test_a_moved_branch_is_seen_and_an_unmoved_one_stays_the_same_object(hub, make_hub_sources) -> None:
    hub.add("org/name", {"config.json": CONFIG})
    sources = make_hub_sources(hub_recheck_s=0)
    first = sources.load_sync("org/name")
    assert sources.load_sync("org/name") is first
    hub.add("org/name", {"config.json": b'{"moved": 1}'}, LATER_COMMIT)
    moved = sources.load_sync("org/name")
    assert (moved.revision, moved.config) == (LATER_COMMIT, {"moved": 1})


def test_tokens_come_from_the_tokenizer_of_the_commit(hub, make_hub_sources) -> None:
    tokenizer = {"added_tokens": [{"id": 9, "content": "<m>"}], "model": {"vocab": {"a": 1}}}
    hub.add("org/name", {"config.json": CONFIG, "tokenizer.json": json.dumps(tokenizer).encode()})
    sources = make_hub_sources()

    async def ask():
        loaded = await sources.load("org/name")
        # On the loop itself nothing is fetched.
        on_loop = loaded.token_text(9)
        fresh = msgspec.structs.replace(loaded, token_text=type(loaded.token_text)(loaded.token_text._read))
        return on_loop, await sources.token_text(fresh, 9), await sources.token_text(fresh, 1)

    assert asyncio.run(ask()) == (None, "<m>", "a")
    resolved = [path for path, _ in hub.requests if path.endswith("tokenizer.json")]
    assert resolved == [f"/org/name/resolve/{COMMIT}/tokenizer.json"]


def test_a_tokenizer_that_cannot_be_had_is_not_asked_for_again_at_once(hub, make_hub_sources) -> None:
    hub.add("org/name", {"config.json": CONFIG})
    hub.misbehave["tokenizer.json"] = lambda handler: handler.answer(500, {})
    loaded = make_hub_sources().load_sync("org/name")
    assert [loaded.token_text(token_id) for token_id in range(5)] == [None] * 5
    assert hub.names().count("tokenizer.json") == 1
