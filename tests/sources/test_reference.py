from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.sources import SourceError
from app.sources.reference import HubReference, LocalReference, parse_reference


@pytest.mark.parametrize("model", ["org/name", "a/b", "Qwen/Qwen3-8B", "z-lab/Qwen3.5_x", "1/2"])
def test_repo_ids(model) -> None:
    assert parse_reference(model) == HubReference(model, "main")


@pytest.mark.parametrize("revision", ["main", "refs/pr/1", "v1.0", "0" * 40, "feature/a-b_c"])
def test_revisions(revision) -> None:
    assert parse_reference("org/name", revision) == HubReference("org/name", revision)


@pytest.mark.parametrize(
    ("model", "path"), [("/a/b", "/a/b"), ("//a///b/", "/a/b"), ("/a/./b/.", "/a/b"), ("/", "/")]
)
def test_paths_are_normalised(model, path) -> None:
    reference = parse_reference(model)
    assert isinstance(reference, LocalReference)
    assert reference.id == path


@pytest.mark.parametrize(
    "model",
    [
        "",
        " ",
        "name",
        "./models/a",
        "models/a/b",
        "../etc",
        "/models/../etc",
        "/models/..",
        "~/models",
        "org/..",
        "org/na..me",
        "org/na--me",
        "org/.hidden",
        "org/name.git",
        "org/name ",
        "org//name",
        "org\\name",
        "org/näme",
        "http://localhost/x",
        "https://huggingface.co/org/name",
        "file:///etc/passwd",
        "hf://org/name",
        "org/name\n",
        "/models/a\x00b",
        "/models/a\u2028b",
        "/models/\ud800",
        "/" + "a" * 256,
        "/a" * 100,
        "/" + "a" * 5000,
        "o" * 50 + "/" + "n" * 50,
    ],
)
def test_malformed_models(model) -> None:
    with pytest.raises(SourceError) as caught:
        parse_reference(model)
    assert caught.value.code == "invalid_request"


@pytest.mark.parametrize(
    "revision",
    ["", "../../x", "a/../b", "/main", "main/", "a//b", ".hidden", "a b", "x.lock", "a\x00", "a?b", "é"],
)
def test_malformed_revisions(revision) -> None:
    with pytest.raises(SourceError) as caught:
        parse_reference("org/name", revision)
    assert caught.value.code == "invalid_request"


def test_a_directory_has_no_revision() -> None:
    with pytest.raises(SourceError) as caught:
        parse_reference("/models/a", "main")
    assert caught.value.code == "invalid_request"


def test_encoded_names_stay_names() -> None:
    assert parse_reference("/models/%2e%2e/etc") == LocalReference(("models", "%2e%2e", "etc"))


def test_ids_without_an_organisation_are_the_operators_only() -> None:
    assert parse_reference("gpt2", legacy_ids=True) == HubReference("gpt2", "main")


@given(st.text(max_size=40), st.none() | st.text(max_size=20))
def test_any_text_is_a_safe_reference_or_an_invalid_request(model, revision) -> None:
    try:
        reference = parse_reference(model, revision)
    except SourceError as error:
        reference = error
    if isinstance(reference, SourceError):
        assert reference.code == "invalid_request"
    elif isinstance(reference, LocalReference):
        assert not {"..", ".", ""} & set(reference.parts)
    else:
        assert ".." not in reference.repo_id + reference.revision
        assert reference.repo_id.isascii()
