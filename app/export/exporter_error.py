"""Why an exporter cannot start."""

from __future__ import annotations


class ExporterError(Exception):
    """Rows cannot be exported as configured; trying again without a change will fail again.

    Attributes:
        code: ``socket_unusable``, ``out_of_memory``, ``tokenizer_missing``, or one of a worker's ``TargetError``.
        detail: one sentence that says what to do.
    """

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail
