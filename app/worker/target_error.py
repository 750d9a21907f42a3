"""Why a target cannot be held."""

from __future__ import annotations

from ..export.exporter_error import ExporterError


class TargetError(ExporterError):
    """The target cannot be held as configured; trying again without a change will fail again.

    Attributes:
        code: ``target_not_found``, ``target_invalid``, ``target_unsupported``, ``checkpoint_unsafe``,
            ``layout_unsupported``, ``dtype_unsupported``, ``device_unavailable``, ``out_of_memory``,
            ``cache_unwritable``, ``draft_invalid``, ``tokenizer_missing``, ``limit_invalid``, ``hub_unreachable``,
            ``hub_unauthorized`` or ``worker_not_installed``.
        detail: one sentence that says what to do.
    """
