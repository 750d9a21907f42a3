"""A finding: one thing about a drafter, a load config or a pair that somebody should know before the roll-out."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

Severity: TypeAlias = Literal["error", "warning", "info"]
Evidence: TypeAlias = Literal["read in code", "run by us", "reported", "inferred"]


class Finding(Struct, frozen=True):
    """One finding.

    Attributes:
        severity: ``error`` when the pair will not start or will answer wrongly; contested or inferred rules are at
            most a ``warning``.
        code: stable snake_case name.
        detail: what will happen and what to do, one sentence each.
        fields: dotted paths of the config or request fields it is about.
        see: links to the reports or sources.
        evidence: how the claim is known.
    """

    severity: Severity
    code: str
    detail: str
    fields: tuple[str, ...] = ()
    see: tuple[str, ...] = ()
    evidence: Evidence = "read in code"


def has_errors(findings: list[Finding] | tuple[Finding, ...]) -> bool:
    """Whether any finding is of severity ``error``."""
    return any(finding.severity == "error" for finding in findings)
