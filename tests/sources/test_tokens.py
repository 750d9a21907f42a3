from __future__ import annotations

import asyncio
import json

import pytest

BPE = {
    "added_tokens": [{"id": 10, "content": "<|mask|>", "special": True}],
    "model": {"type": "BPE", "vocab": {"Ġhello": 3, 'quo"te': 4}, "merges": []},
}


def _dump(value) -> bytes:
    return json.dumps(value).encode()


@pytest.fixture
def load(make_sources, tmp_path, write_model):
    """Load a model with these tokenizer files."""

    def load(files: dict[str, bytes]):
        model = write_model(tmp_path / "m", {"a": 1}, **files)
        return make_sources(model_roots=(tmp_path,)).load_sync(str(model))

    return load


@pytest.mark.parametrize(
    ("files", "token_id", "text"),
    [
        ({"tokenizer": _dump(BPE)}, 10, "<|mask|>"),
        ({"tokenizer": _dump(BPE)}, 3, "Ġhello"),
        ({"tokenizer": _dump(BPE)}, 4, 'quo"te'),
        ({"tokenizer": _dump(BPE)}, 5, None),
        ({"tokenizer": _dump(BPE)}, -1, None),
        (
            {"tokenizer": _dump({"model": {"type": "Unigram", "vocab": [["<unk>", 0.0], ["▁a", -1.5]]}})},
            1,
            "▁a",
        ),
        ({"tokenizer": _dump({"model": {"type": "Unigram", "vocab": [["<unk>", 0.0]]}})}, 9, None),
        ({"tokenizer": _dump({"model": {"type": "Unigram", "vocab": [["<unk>", 0.0]]}})}, 2**80, None),
        (
            {"tokenizer_config": _dump({"added_tokens_decoder": {"7": {"content": "<m>", "lstrip": False}}})},
            7,
            "<m>",
        ),
        ({"tokenizer_config": _dump({"model_max_length": 10**30}), "added_tokens": b'{"<x>": 8}'}, 8, "<x>"),
        ({"vocab": b'{"a": 0}'}, 0, "a"),
        ({"tokenizer": b"{", "vocab": b'{"a": 0}'}, 0, "a"),
        ({"tokenizer": b"[" * 100_000}, 0, None),
        ({"tokenizer": b'{"model": ' + b"[" * 100_000}, 0, None),
        ({"tokenizer": _dump({"added_tokens": "x", "model": 3})}, 0, None),
        ({"tokenizer": _dump({"model": {"vocab": {"a": "b"}}})}, 0, None),
        ({"tokenizer": _dump({"model": None})}, 0, None),
        ({}, 0, None),
    ],
)
def test_token_text(load, files, token_id, text) -> None:
    loaded = load(files)
    assert loaded.token_text(token_id) == text


def test_a_text_is_remembered(make_sources, tmp_path, write_model) -> None:
    model = write_model(tmp_path / "m", {}, tokenizer=_dump(BPE))
    sources = make_sources(model_roots=(tmp_path,))

    async def ask():
        loaded = await sources.load(str(model))
        first = await sources.token_text(loaded, 10)
        (model / "tokenizer.json").unlink()
        return first, await sources.token_text(loaded, 10), await sources.token_text(loaded, 3)

    assert asyncio.run(ask()) == ("<|mask|>", "<|mask|>", None)


def test_a_tokenizer_outside_the_root_is_not_read(make_sources, tmp_path, write_model) -> None:
    write_model(tmp_path / "outside", {}, tokenizer=_dump(BPE))
    model = write_model(tmp_path / "root" / "m", {})
    (model / "tokenizer.json").symlink_to(tmp_path / "outside" / "tokenizer.json")
    loaded = make_sources(model_roots=(tmp_path / "root",)).load_sync(str(model))
    assert loaded.token_text(10) is None


def test_a_changed_tokenizer_is_read_again(make_sources, tmp_path, write_model) -> None:
    model = write_model(tmp_path / "m", {})
    sources = make_sources(model_roots=(tmp_path,), local_recheck_s=0)
    assert sources.load_sync(str(model)).token_text(10) is None
    write_model(model, {}, tokenizer=_dump(BPE))
    assert sources.load_sync(str(model)).token_text(10) == "<|mask|>"
