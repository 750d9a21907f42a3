"""``/v1/target`` and ``/v1/hidden-states``: the worker's rows, by lease or as safetensors."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import time
from collections.abc import Awaitable
from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import APIRouter, Depends, Path, Request
from starlette.responses import Response

from ..transport import messages as wire
from ..transport.errors import RemoteError, TransportError
from .answer import json_response
from .body import read_json, validated
from .context import Context, context_of
from .hidden_states_schemas import (
    HiddenStatesAnswerDoc,
    HiddenStatesRequest,
    LeaseAnswerDoc,
    RegionDoc,
    RenewRequest,
    TargetDoc,
)
from .lease_book import RestLease
from .openapi import json_body, problems
from .problem import FieldProblem, ProblemError
from .worker_link import problem_of
from .worker_session import WorkerSession, safetensors_of

router = APIRouter(prefix="/v1", tags=["hidden states"])
Ctx = Annotated[Context, Depends(context_of)]
LeaseId = Annotated[str, Path(max_length=64, description="Id of a lease, 32 hexadecimal digits")]
_Result = TypeVar("_Result")

SAFETENSORS = "application/vnd.safetensors"
DOWNLOAD_TTL_S = 60.0
_WORKER = ("worker_disabled", "worker_unavailable", "worker_restarted")
_FORWARD = (
    *_WORKER, "invalid_request", "malformed_json", "request_too_large", "unsupported_media_type",
    "not_acceptable", "prompt_too_long", "prompts_exceed_slab", "token_out_of_range", "empty_prompt",
    "tokenizer_missing", "overloaded", "slab_full", "out_of_memory", "deadline_exceeded", "worker_error",
)  # fmt: skip
_LEASE = (*_WORKER, "lease_not_found", "lease_expired")
_ADOPT = ("overloaded", "slab_full", "prompt_too_long", "worker_error")
_BINARY: dict[str, Any] = {SAFETENSORS: {"schema": {"type": "string", "format": "binary"}}}


@router.get("/target", operation_id="getTarget", response_model=TargetDoc, responses=problems(*_WORKER))
async def get_target(context: Ctx) -> Response:
    """The target model that the worker holds, its limits, and the layout of its hidden states."""
    return json_response(context.link.session().target)


@router.post(
    "/hidden-states",
    operation_id="postHiddenStates",
    response_model=HiddenStatesAnswerDoc,
    openapi_extra=json_body(HiddenStatesRequest),
    responses={**problems(*_FORWARD), 200: {"content": _BINARY}},
)
async def post_hidden_states(request: Request, context: Ctx) -> Response:
    """Runs prompts and leases their rows, one for every token: what a lone forward of each prompt gives.

    With `Accept: application/vnd.safetensors` the answer is the rows themselves (`hidden_states.0`, `token_ids.0`, ...)
    and no lease is left behind. The answer is all prompts or none.
    """
    as_file = _wants_safetensors(request)
    body = await read_json(request, context.max_body_bytes)
    asked = validated(HiddenStatesRequest, body.value)
    _refuse_beyond_64_bits(asked)
    session = context.link.session()
    client = client_of(request)
    wanted = len(asked.prompt_token_ids or asked.prompts or ())
    _refuse_too_many(context, wanted, client)
    before = time.monotonic()
    ttl_s = DOWNLOAD_TTL_S if as_file else float(asked.lease_ttl_s)
    work = session.forward(
        prompt_token_ids=asked.prompt_token_ids,
        prompts=asked.prompts,
        lease_ttl_s=ttl_s,
        deadline_s=context.request_timeout_s,
        client=client,
    )
    with context.leases.reserved(client, wanted):
        reply = await _calling(_unless_disconnected(request, work))
    if as_file:
        return await _download(session, reply, before + ttl_s)
    context.leases.end_other_epochs(reply.epoch)
    context.leases.add(reply.leases, epoch=reply.epoch, client=client, deadline=before + ttl_s)
    return json_response({"epoch": reply.epoch, "leases": [_shown(lease) for lease in reply.leases]})


@router.get(
    "/hidden-states/region",
    operation_id="getHiddenStatesRegion",
    response_model=RegionDoc,
    responses=problems(*_WORKER, "region_not_exposed"),
)
async def get_region(context: Ctx) -> Response:
    """The region descriptor: how a process on this machine maps the slab. Off by default over TCP."""
    if not context.expose_region:
        detail = (
            "Use the worker's socket (call describe); or set DRAFTPORT_EXPOSE_REGION=true, knowing that a CUDA IPC "
            "handle is write access to the slab."
        )
        raise ProblemError("region_not_exposed", detail)
    return json_response(context.link.session().region)


@router.post(
    "/hidden-states/leases/{lease_id}/renew",
    operation_id="postLeaseRenew",
    response_model=LeaseAnswerDoc,
    openapi_extra=json_body(RenewRequest, required=False),
    responses=problems(
        *_LEASE, "invalid_request", "malformed_json", "request_too_large", "unsupported_media_type"
    ),
)
async def renew_lease(request: Request, lease_id: LeaseId, context: Ctx) -> Response:
    """Sets the lease's deadline anew, counted from now."""
    asked = await _renew_request(request, context)
    session = context.link.session()
    _find(context, session, lease_id)
    before = time.monotonic()
    call = session.client.call(wire.Renew(id=0, lease_id=lease_id, lease_ttl_s=float(asked.lease_ttl_s)))
    reply = await _calling_about(context, lease_id, call)
    context.leases.renewed(reply.lease, before + asked.lease_ttl_s)
    return json_response({"epoch": reply.epoch, "lease": _shown(reply.lease)})


@router.delete(
    "/hidden-states/leases/{lease_id}",
    operation_id="deleteLease",
    status_code=204,
    response_class=Response,
    responses=problems("lease_not_found", "worker_disabled"),
)
async def delete_lease(lease_id: LeaseId, context: Ctx) -> Response:
    """Ends the lease. Doing so again, or after it ran out, is no error."""
    if context.leases.find(lease_id) is None:
        if context.leases.has_ended(lease_id):
            return Response(status_code=204)
        if not context.link.enabled:
            context.link.session()
        raise ProblemError("lease_not_found", _NOT_FOUND)
    context.leases.end(lease_id)
    with contextlib.suppress(ProblemError, TransportError):  # the worker is gone, and with it the lease
        await context.link.session().client.call(wire.Release(id=0, lease_id=lease_id))
    return Response(status_code=204)


@router.get(
    "/hidden-states/leases/{lease_id}/tensor",
    operation_id="getLeaseTensor",
    response_class=Response,
    responses={**problems(*_LEASE, *_ADOPT), 200: {"content": _BINARY}},
)
async def get_tensor(request: Request, lease_id: LeaseId, context: Ctx) -> Response:
    """The lease's rows as safetensors: `hidden_states` and `token_ids`.

    Also of a lease that was not taken here, such as one that vLLM's own answer named: it becomes one of this
    client's, for a minute or until it is deleted.
    """
    session = context.link.session()
    if context.leases.find(lease_id) is None and not context.leases.has_ended(lease_id):
        await _adopt(context, session, client_of(request), lease_id)
    found = _find(context, session, lease_id)
    # The worker decides whether the lease still stands; what is read afterwards is confirmed by the control page.
    await _calling_about(
        context, lease_id, session.client.call(wire.Read(id=0, lease_id=lease_id, max_bytes=1))
    )
    async with context.downloads:
        rows = (await _calling(session.rows([found.lease])))[0]
        named = [("hidden_states", "token_ids", rows)]
        data = await asyncio.to_thread(safetensors_of, named, session.target, session.epoch)
    if not session.still_valid(found.lease, found.deadline):
        raise _gone(context, lease_id)
    return Response(data, media_type=SAFETENSORS, headers={"cache-control": "no-store"})


_NOT_FOUND = "There is no lease of this id; ask for new ones with POST /v1/hidden-states."
_EXPIRED = "The lease has ended and its rows may be gone; ask anew with POST /v1/hidden-states."


def client_of(request: Request) -> str:
    """The API client as limits count it: its token, else its address."""
    token = request.headers.get("authorization")
    if token:
        return "token:" + hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()[:16]
    return f"peer:{request.client.host}" if request.client else "peer:local"


def _wants_safetensors(request: Request) -> bool:
    accept = request.headers.get("accept", "*/*").lower()
    if SAFETENSORS in accept:
        return True
    if re.search(r"\*/\*|application/(json|\*)", accept):
        return False
    raise ProblemError("not_acceptable", f"Accept application/json for leases or {SAFETENSORS} for the rows.")


def _refuse_beyond_64_bits(asked: HiddenStatesRequest) -> None:
    """The wire's integers end there; the worker checks everything below."""
    for index, prompt in enumerate(asked.prompt_token_ids or ()):
        if prompt and not -(2**63) <= min(prompt) <= max(prompt) < 2**63:
            field, detail = f"prompt_token_ids.{index}", "A token id must be one of the target's vocabulary."
            errors = [FieldProblem(field, "token_out_of_range", detail)]
            raise ProblemError("token_out_of_range", f"{field}: {detail}", errors=errors)


def _refuse_too_many(context: Context, wanted: int, client: str) -> None:
    held = context.leases.held_by(client)
    if held + wanted > context.max_leases_per_client:
        detail = (
            f"You hold {held} leases and ask for {wanted} more; {context.max_leases_per_client} are allowed. "
            "Release some, or let them run out."
        )
        raise ProblemError("overloaded", detail, retry_after_s=1.0)


async def _renew_request(request: Request, context: Context) -> RenewRequest:
    if request.headers.get("content-length", "0") == "0" and "transfer-encoding" not in request.headers:
        return RenewRequest()
    body = await read_json(request, context.max_body_bytes)
    return validated(RenewRequest, body.value)


async def _download(session: WorkerSession, reply: wire.ForwardReply, deadline: float) -> Response:
    try:
        rows = await _calling(session.rows(reply.leases))
        named = [(f"hidden_states.{i}", f"token_ids.{i}", one) for i, one in enumerate(rows)]
        data = await asyncio.to_thread(safetensors_of, named, session.target, reply.epoch)
        if not all(session.still_valid(lease, deadline) for lease in reply.leases):
            detail = "The worker ended while the rows were being read; send the request again."
            raise ProblemError("worker_restarted", detail, retry_after_s=1.0)
    finally:
        for lease in reply.leases:
            session.release(lease)
    return Response(data, media_type=SAFETENSORS, headers={"cache-control": "no-store"})


async def _unless_disconnected(request: Request, work: Awaitable[_Result]) -> _Result:
    """Awaits ``work``, and cancels it when the client goes away: nobody would release its leases."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnect(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ProblemError("deadline_exceeded", "The client went away before the answer was there.")
    finally:
        gone.cancel()
        task.cancel()


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _calling(work: Awaitable[_Result]) -> _Result:
    """Awaits a call to the worker; its errors become problems."""
    try:
        return await work
    except RemoteError as error:
        errors = [FieldProblem(error.field, error.code, error.detail)] if error.field else []
        raise ProblemError(
            error.code, error.detail, errors=errors, retry_after_s=error.retry_after_s
        ) from None
    except TransportError as error:
        raise problem_of(error) from None


async def _calling_about(context: Context, lease_id: str, work: Awaitable[_Result]) -> _Result:
    try:
        return await work
    except RemoteError as error:
        if error.code not in ("lease_not_found", "lease_expired"):
            raise problem_of(error) from None
        raise _gone(context, lease_id) from None
    except TransportError as error:
        raise problem_of(error) from None


async def _adopt(context: Context, session: WorkerSession, client: str, lease_id: str) -> None:
    """Holds a lease that somebody else took; who knows its 128 random bits was told of it."""
    _refuse_too_many(context, 1, client)
    before = time.monotonic()
    with context.leases.reserved(client, 1):
        hold = wire.Hold(id=0, lease_id=lease_id, lease_ttl_s=DOWNLOAD_TTL_S)
        reply = await _calling(session.client.call(hold))
    context.leases.add([reply.lease], epoch=reply.epoch, client=client, deadline=before + DOWNLOAD_TTL_S)


def _find(context: Context, session: WorkerSession, lease_id: str) -> RestLease:
    found = context.leases.find(lease_id)
    if found is not None and found.epoch == session.epoch:
        return found
    if found is not None or context.leases.has_ended(lease_id):
        raise _gone(context, lease_id)
    raise ProblemError("lease_not_found", _NOT_FOUND)


def _gone(context: Context, lease_id: str) -> ProblemError:
    context.leases.end(lease_id)
    return ProblemError("lease_expired", _EXPIRED)


def _shown(lease: wire.LeaseDescriptor) -> dict[str, Any]:
    document = msgspec.structs.asdict(lease)
    del document["expires_in_s"]
    return document
