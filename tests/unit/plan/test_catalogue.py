"""The catalogue as data, and as the text that docs are made of."""

import ast
import re
from pathlib import Path

import pytest

from app.drafting.catalogue import CATALOGUE, ENTRIES, finding, render_markdown

EACH = pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.code)


def test_codes_are_unique():
    assert len(ENTRIES) == len(CATALOGUE)


@EACH
def test_inferred_and_contested_claims_are_at_most_warnings(entry):
    assert entry.severity != "error" or not (entry.contested or entry.evidence == "inferred")


@EACH
def test_entries_speak_in_sentences(entry):
    assert entry.do.endswith(".")
    assert entry.happens.endswith(".") or entry.happens == "{reason}"
    if entry.kind == "finding":
        assert re.fullmatch(r"[a-z][a-z0-9_]*", entry.code)


@EACH
def test_reports_are_public_links(entry):
    for link in entry.see:
        assert re.fullmatch(
            r"https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+|vLLM [\d.]+: vllm/[\w/.]*", link
        )
    assert entry.see or not entry.rows


def test_a_finding_is_made_of_its_entry():
    made = finding("n_predict_indivisible", "num_speculative_tokens", tokens=3, depth=2)
    assert made.detail.startswith("3 speculative tokens are not divisible by the 2 ")
    assert made.fields == ("num_speculative_tokens",)
    assert made.see == ENTRIES["n_predict_indivisible"].see
    assert made.evidence == "read in code"
    assert finding("n_predict_indivisible", severity="info", tokens=3, depth=2).severity == "info"


def test_braces_in_what_a_config_says_are_just_text():
    made = finding("method_unknown", reason="the method {0} and {reason} is none")
    assert "{0} and {reason}" in made.detail


def test_docs_list_every_entry_with_its_links():
    text = render_markdown()
    for entry in CATALOGUE:
        [line] = [line for line in text.splitlines() if line.startswith(f"- `{entry.code}`")]
        for link in entry.see:
            assert link in line
    assert "{" not in text
    assert text.count("\n## ") == 3


def _codes_in_source():
    """The code of every ``Finding(severity, code, ...)`` that the package writes as a literal."""
    for path in sorted((Path(__file__).parents[3] / "app").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Finding":
                named = {keyword.arg: keyword.value for keyword in node.keywords}
                code = named.get("code") or (node.args[1] if len(node.args) > 1 else None)
                if isinstance(code, ast.Constant):
                    yield code.value


def test_findings_worded_elsewhere_are_listed_too():
    codes = set(_codes_in_source())
    assert "mask_token_negative" in codes
    assert codes <= set(ENTRIES)
