"""docs/findings.md is the catalogue; ``UPDATE_DOCS=1 python -m pytest tests/unit/plan/test_findings_docs.py`` writes it."""

import os
from pathlib import Path

from app.drafting.catalogue import render_markdown

DOCS = Path(__file__).parents[3] / "docs" / "findings.md"
INTRODUCTION = """\
# Every finding

What `POST /v1/drafting-plan` and `draftport plan` know, with the public reports behind it. A finding has a severity (`error`: it will not start, will hang, or will answer
wrongly; `warning`: likely or contested trouble; `info`: worth knowing) and says how it is known: `read in code`, `run by us`, `reported` or `inferred`. What is inferred
or contested is never an error. `<names>` are filled in from the pair.

This page is written from `app/drafting/catalogue*.py`.

"""


def test_the_page_is_up_to_date():
    text = INTRODUCTION + render_markdown()
    if os.environ.get("UPDATE_DOCS"):
        DOCS.parent.mkdir(exist_ok=True)
        DOCS.write_text(text)
    assert DOCS.read_text() == text
