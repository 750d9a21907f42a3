"""Why a call on the worker's socket fails."""

from __future__ import annotations


class CallError(Exception):
    """A call is answered with an error frame.

    Attributes:
        code: one of REST's codes.
        detail: one sentence that says what to do.
        retry_after_s: seconds after which the same call may succeed, or ``None``.
        field: the offending field, or ``None``.
    """

    def __init__(
        self, code: str, detail: str, *, retry_after_s: float | None = None, field: str | None = None
    ) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail
        self.retry_after_s = retry_after_s
        self.field = field
