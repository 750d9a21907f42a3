"""The catalogue: every finding that Draftport knows, as data, and the one place that docs list them from.

``finding`` makes a finding of an entry, so that a code, its text and its links are written once. Findings about a mask
token id or a load config are worded where they arise (``mask_token_findings``, ``load_config_answer``); their entries
here say what they are about.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from .catalogue_answers import ANSWER_ENTRIES
from .catalogue_entry import Entry, Kind
from .catalogue_layers import LAYER_ENTRIES
from .catalogue_methods import METHOD_ENTRIES
from .catalogue_service import SERVICE_ENTRIES
from .catalogue_steps import STEP_ENTRIES
from .findings import Finding, Severity

CATALOGUE: Final[tuple[Entry, ...]] = (
    *METHOD_ENTRIES,
    *LAYER_ENTRIES,
    *STEP_ENTRIES,
    *ANSWER_ENTRIES,
    *SERVICE_ENTRIES,
)
ENTRIES: Final = {entry.code: entry for entry in CATALOGUE}

_TITLES: Final[tuple[tuple[Kind, str], ...]] = (
    ("finding", "Findings"),
    ("field", "Fields of the answer that settle a question"),
    ("guarantee", "What the service rules out by its design"),
    ("out_of_scope", "What no config can show"),
)


def finding(code: str, *fields: str, severity: Severity | None = None, **facts: object) -> Finding:
    """A finding of the catalogue, its sentences filled in with ``facts``.

    Args:
        code: of an entry of kind ``finding``.
        *fields: dotted paths of the config or request fields it is about.
        severity: a milder one than the entry's, where this pair calls for it.
        **facts: what the entry's sentences name in braces.
    """
    entry = ENTRIES[code]
    detail = f"{entry.happens.format_map(facts)} {entry.do.format_map(facts)}"
    return Finding(severity or entry.severity, code, detail, fields, entry.see, entry.evidence)


def rows_handled() -> dict[str, tuple[str, ...]]:
    """For every collected report, by its id: the codes of the entries that answer it."""
    handled: dict[str, tuple[str, ...]] = {}
    for entry in CATALOGUE:
        for row in entry.rows:
            handled[row] = (*handled.get(row, ()), entry.code)
    return handled


def render_markdown() -> str:
    """The whole catalogue as Markdown lists, for the documentation."""
    return "\n".join(_lines()).rstrip() + "\n"


def _lines() -> Iterator[str]:
    for kind, title in _TITLES:
        entries = [entry for entry in CATALOGUE if entry.kind == kind]
        if not entries:
            continue
        yield f"## {title}"
        yield ""
        for entry in entries:
            yield _line(entry)
        yield ""


def _line(entry: Entry) -> str:
    marks = ""
    if entry.kind == "finding":
        contested = ", contested" if entry.contested else ""
        marks = f" ({entry.severity}, {entry.evidence}{contested})"
    text = f"{entry.happens} {entry.do}".replace("{", "<").replace("}", ">")
    links = ", ".join(_link(report) for report in entry.see)
    return f"- `{entry.code}`{marks}: {text}" + (f" See {links}." if links else "")


def _link(report: str) -> str:
    if not report.startswith("https://"):
        return report
    owner, repository, _, number = report.removeprefix("https://github.com/").split("/")
    return f"[{owner}/{repository}#{number}]({report})"
