"""How commands print answers: text for people, JSON for programs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..drafting.findings import Finding

_INDENT = (0, 0, 0, 2)
_STYLES = {"error": "bold red", "warning": "yellow", "info": "cyan"}


def print_json(document: Any) -> None:
    """One JSON document, indented."""
    text = msgspec.json.format(msgspec.json.encode(document), indent=2)
    sys.stdout.write(text.decode() + "\n")


def print_fields(fields: Mapping[str, Any]) -> None:
    """Names and values in two columns."""
    table = Table.grid(padding=(0, 2))
    for name, value in fields.items():
        shown = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        table.add_row(Text(name, style="bold"), Text(shown))
    Console().print(table)


def print_findings(findings: Iterable[Finding]) -> None:
    """Findings, the worst first."""
    console = Console()
    order = list(_STYLES)
    for finding in sorted(findings, key=lambda one: order.index(one.severity)):
        head = Text(f"{finding.severity} ", style=_STYLES[finding.severity])
        console.print(head + Text(finding.code, style="bold"))
        console.print(Padding(Text(finding.detail), _INDENT))
        for link in finding.see:
            console.print(Text(f"  see {link}", style="dim"), soft_wrap=True)  # a link in one piece
