"""What the service answers, as types: the domain's own, and what REST adds to them.

Fields that a newer service adds are ignored.
"""

from __future__ import annotations

from msgspec import Struct

from ..drafting.load_config_answer import LoadConfigAnswer
from ..drafting.mask_token_answer import MaskTokenAnswer
from ..drafting.plan import DraftingPlan
from ..transport.messages import LeaseDescriptor, WorkerState


class ConfigRead(Struct, frozen=True):
    """Which config was read; ``id`` is ``None`` for an inline one."""

    id: str | None
    revision: str | None
    config_sha256: str


class MaskToken(MaskTokenAnswer, frozen=True, kw_only=True):
    """Answer of ``/v1/mask-token``."""

    model: ConfigRead


LoadConfigs = LoadConfigAnswer
"""Answer of ``/v1/load-config``."""


class HiddenStates(Struct, frozen=True):
    """All leases of a request, in the order of its prompts; all of one worker's ``epoch``."""

    epoch: str
    leases: list[LeaseDescriptor]


class RenewedLease(Struct, frozen=True):
    """A lease with its new deadline."""

    epoch: str
    lease: LeaseDescriptor


class Readiness(Struct, frozen=True):
    """Whether metadata is answered (``status``), and what the worker is doing."""

    status: str
    worker: WorkerState


class Version(Struct, frozen=True):
    """Versions of the service and of what it knows."""

    version: str
    protocol_version: int
    newest_known_engines: dict[str, str]


__all__ = [
    "ConfigRead",
    "DraftingPlan",
    "HiddenStates",
    "LoadConfigs",
    "MaskToken",
    "Readiness",
    "RenewedLease",
    "Version",
]
