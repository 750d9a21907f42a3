"""Client of the REST interface, for controllers and trainers: typed answers, typed errors, retries.

It needs neither FastAPI nor PyTorch. A process on the same machine that wants rows without a copy uses ``app.reader``.
"""

from .answers import (
    DraftingPlan,
    HiddenStates,
    LoadConfigs,
    MaskToken,
    Readiness,
    RenewedLease,
    Version,
)
from .async_client import AsyncDraftportClient
from .client import DraftportClient
from .errors import DraftportError, FieldProblem, ProblemError, UnexpectedAnswerError, UnreachableError

__all__ = [
    "AsyncDraftportClient",
    "DraftingPlan",
    "DraftportClient",
    "DraftportError",
    "FieldProblem",
    "HiddenStates",
    "LoadConfigs",
    "MaskToken",
    "ProblemError",
    "Readiness",
    "RenewedLease",
    "UnexpectedAnswerError",
    "UnreachableError",
    "Version",
]
