"""What the hub's statuses and headers mean, in our codes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from .errors import SourceError

MAX_RETRY_AFTER_S: Final = 3600.0
_RATE_LIMIT_RESET: Final = re.compile(r"(?:^|;)\s*t=(\d{1,6})")


def refusal(status: int, headers: Mapping[str, str], *, with_token: bool) -> SourceError:
    """The error for a status of 400 or more, save a missing file's.

    Without a token the hub answers 401 both for what does not exist and for what is private, so that nobody can tell.
    """
    code = headers.get("x-error-code", "")
    if code == "RevisionNotFound":
        return SourceError("revision_not_found", "The hub repo has no such revision.")
    if code == "GatedRepo":
        return SourceError(
            "hub_unauthorized",
            "The hub repo is gated; accept its terms on the hub and give this service a token (HF_TOKEN) that may "
            "read it.",
        )
    if status == 403 or (status == 401 and with_token and code != "RepoNotFound"):
        return SourceError(
            "hub_unauthorized", "The hub refuses this service's token for the repo; check HF_TOKEN."
        )
    if status in (401, 404, 410) or code == "RepoNotFound":
        return SourceError("model_not_found", "The hub has no such repo, or it is not accessible.")
    if status == 429:
        return SourceError(
            "hub_unreachable",
            "The hub limits how often this service may ask; try again later, or give it a token (HF_TOKEN).",
            retry_after_s=_retry_after_s(headers),
        )
    return SourceError(
        "hub_unreachable",
        f"The hub answers with status {status}; try again later.",
        retry_after_s=_retry_after_s(headers),
    )


def is_missing_file(status: int, headers: Mapping[str, str]) -> bool:
    """Whether the repo and revision are there, and the file is not."""
    return status >= 400 and headers.get("x-error-code") == "EntryNotFound"


def etag_of(headers: Mapping[str, str]) -> str | None:
    """The file's tag without quotes and weakness mark; a linked file's own tag goes first."""
    tag = headers.get("x-linked-etag") or headers.get("etag")
    return tag.removeprefix("W/").strip('"') if tag else None


def declared_size(headers: Mapping[str, str], name: str) -> int | None:
    """A size in bytes from a header, ``None`` where it is missing or no number."""
    text = headers.get(name, "").strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit() and len(text) < 10:
        return min(float(text), MAX_RETRY_AFTER_S)
    match = _RATE_LIMIT_RESET.search(headers.get("ratelimit", ""))
    return min(float(match[1]), MAX_RETRY_AFTER_S) if match else None
