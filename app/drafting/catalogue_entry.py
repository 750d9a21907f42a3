"""The shape of one entry of the catalogue of findings."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from .findings import Evidence, Severity

Kind: TypeAlias = Literal["finding", "field", "guarantee", "out_of_scope"]
GITHUB = "https://github.com/"


class Entry(Struct, frozen=True, kw_only=True):
    """One thing that went wrong somewhere, and how Draftport answers it.

    Attributes:
        code: stable name: a finding's code, a field's path, or the name of a guarantee.
        kind: ``finding`` (said when a pair triggers it), ``field`` (always part of the answer), ``guarantee`` (the
            service cannot have the bug), ``out_of_scope`` (a config can't show it).
        rows: ids of the collected reports behind it.
        severity: the worst severity it is given.
        evidence: how the claim is known.
        contested: reports contradict each other, so it is never an error.
        happens: what will happen, one sentence; ``{names}`` are filled in from the pair.
        do: what to do, one sentence; for the other kinds, what Draftport does.
        reports: paths below github.com, or ``vLLM <version>: <file>``.
    """

    code: str
    happens: str
    do: str
    kind: Kind = "finding"
    rows: tuple[str, ...] = ()
    severity: Severity = "warning"
    evidence: Evidence = "read in code"
    contested: bool = False
    reports: tuple[str, ...] = ()

    @property
    def see(self) -> tuple[str, ...]:
        """Links to the reports."""
        return tuple(report if report.startswith("vLLM ") else GITHUB + report for report in self.reports)
