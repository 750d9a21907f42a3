"""The one error of this package, with REST's stable codes."""

from __future__ import annotations

from typing import Final

# The HTTP status that belongs to each code; the REST layer needs no second table.
SOURCE_ERROR_STATUS: Final[dict[str, int]] = {
    "malformed_json": 400,
    "model_not_allowed": 403,
    "model_not_found": 404,
    "revision_not_found": 404,
    "config_not_found": 404,
    "config_invalid": 422,
    "invalid_request": 422,
    "hub_unauthorized": 502,
    "hub_unreachable": 502,
    "hub_timeout": 504,
}


class SourceError(Exception):
    """A model's config cannot be had.

    Attributes:
        code: stable snake_case name, a key of ``SOURCE_ERROR_STATUS``.
        detail: one or two sentences for people: what is wrong and what to do. Names no path outside the model roots
            and quotes no library.
        retry_after_s: seconds after which the same request may succeed, or ``None``.
    """

    def __init__(self, code: str, detail: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail
        self.retry_after_s = retry_after_s

    @property
    def status(self) -> int:
        """The HTTP status of the code."""
        return SOURCE_ERROR_STATUS[self.code]

    def again(self) -> SourceError:
        """A fresh equal error: raising one object for many waiters would grow its traceback without end."""
        return SourceError(self.code, self.detail, retry_after_s=self.retry_after_s)
