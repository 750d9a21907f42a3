"""Every call as data: what is sent, and what type comes back. The two clients only differ in how they send it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeAlias, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import Struct

from ..drafting.load_config_answer import LoadConfigAnswer
from ..drafting.plan import DraftingPlan
from ..transport.messages import TargetDescription
from ..transport.region import RegionDescriptor
from .answers import HiddenStates, MaskToken, Readiness, RenewedLease, Version

SAFETENSORS = "application/vnd.safetensors"
JSON = "application/json"
_Answer = TypeVar("_Answer")

ModelReference: TypeAlias = str | Mapping[str, Any]
"""A model's name, or ``{"model": ..., "revision": ...}``, or ``{"config": {...}}``."""
Engine: TypeAlias = str | Mapping[str, str]
"""``vllm``, ``vllm==0.27.1``, or ``{"name": ..., "version": ...}``."""


class Call(Struct, Generic[_Answer], frozen=True):
    """A request and the type of its answer (``bytes``: the body as it is; ``None``: there is none)."""

    method: str
    path: str
    answer: Any
    body: bytes | None = None
    accept: str = JSON


def mask_token(
    model: str | None,
    revision: str | None,
    config: Mapping[str, Any] | None,
    target: ModelReference | None,
    engine: Engine | None,
) -> Call[MaskToken]:
    """``POST /v1/mask-token``."""
    body = {"model": model, "revision": revision, "config": config, "target": _reference(target)}
    return _post("/v1/mask-token", body | {"engine": engine}, MaskToken)


def load_config(
    load_config: Mapping[str, Any],
    pipeline_parallel_size: int,
    optional: Mapping[str, Any],
) -> Call[LoadConfigAnswer]:
    """``POST /v1/load-config``."""
    body = {"load_config": load_config, "pipeline_parallel_size": pipeline_parallel_size, **optional}
    return _post("/v1/load-config", body, LoadConfigAnswer)


def drafting_plan(
    target: ModelReference | None, draft: ModelReference | None, optional: Mapping[str, Any]
) -> Call[DraftingPlan]:
    """``POST /v1/drafting-plan``."""
    body = {"target": _reference(target), "draft": _reference(draft), **optional}
    return _post("/v1/drafting-plan", body, DraftingPlan)


def hidden_states(
    prompt_token_ids: Sequence[Sequence[int]] | None, prompts: Sequence[str] | None, lease_ttl_s: float
) -> Call[HiddenStates]:
    """``POST /v1/hidden-states`` for leases."""
    body = {"prompt_token_ids": prompt_token_ids, "prompts": prompts, "lease_ttl_s": lease_ttl_s}
    return _post("/v1/hidden-states", body, HiddenStates)


def download(prompt_token_ids: Sequence[Sequence[int]] | None, prompts: Sequence[str] | None) -> Call[bytes]:
    """``POST /v1/hidden-states`` for the rows themselves."""
    body = {"prompt_token_ids": prompt_token_ids, "prompts": prompts}
    return _post("/v1/hidden-states", body, bytes, SAFETENSORS)


def lease_tensor(lease_id: str) -> Call[bytes]:
    """``GET /v1/hidden-states/leases/{id}/tensor``."""
    return Call("GET", f"{_lease(lease_id)}/tensor", bytes, accept=f"{SAFETENSORS}, {JSON};q=0.1")


def renew_lease(lease_id: str, lease_ttl_s: float) -> Call[RenewedLease]:
    """``POST /v1/hidden-states/leases/{id}/renew``."""
    return _post(f"{_lease(lease_id)}/renew", {"lease_ttl_s": lease_ttl_s}, RenewedLease)


def release_lease(lease_id: str) -> Call[None]:
    """``DELETE /v1/hidden-states/leases/{id}``."""
    return Call("DELETE", _lease(lease_id), None)


TARGET: Call[TargetDescription] = Call("GET", "/v1/target", TargetDescription)
REGION: Call[RegionDescriptor] = Call("GET", "/v1/hidden-states/region", RegionDescriptor)
READINESS: Call[Readiness] = Call("GET", "/readyz", Readiness)
VERSION: Call[Version] = Call("GET", "/version", Version)


def _post(path: str, body: Mapping[str, Any], answer: Any, accept: str = JSON) -> Call[Any]:
    given = {name: value for name, value in body.items() if value is not None}
    return Call("POST", path, answer, msgspec.json.encode(given), accept)


def _reference(model: ModelReference | None) -> Mapping[str, Any] | None:
    return {"model": model} if isinstance(model, str) else model


def _lease(lease_id: str) -> str:
    return f"/v1/hidden-states/leases/{quote(lease_id, safe='')}"
