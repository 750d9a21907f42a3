"""``/v1/drafting-plan`` and ``/v1/drafting-plans``."""

from __future__ import annotations

import asyncio
import shlex
from typing import Annotated, Any, NamedTuple

import msgspec
from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from ..drafting.findings import Finding
from ..drafting.load_config import LoadConfigError
from ..drafting.pair import family_of
from ..drafting.plan import DraftingPlan, drafting_plan, ordered
from ..drafting.plan_merge import ContradictionError, PlanFields, merge
from ..drafting.plan_request import PlanRequest
from ..drafting.vllm_args import VllmArgs, VllmArgsError, parse_vllm_args
from .body import JsonBody, read_json, read_json_list, validated
from .context import Context, context_of
from .load_config import load_config_problem
from .loading import Given, engine_of, inline, load_model, token_text
from .mask_token import BODY_PROBLEMS, MODEL_PROBLEMS
from .openapi import json_body, json_list_body, problems
from .plan_schemas import MOST_PLANS, DraftingPlanDoc, DraftingPlanRequest, PlanOrProblem
from .problem import FieldProblem, ProblemError, invalid
from .schemas import ModelRef

router = APIRouter(prefix="/v1", tags=["metadata"])
Ctx = Annotated[Context, Depends(context_of)]
_CODES = (*MODEL_PROBLEMS, *BODY_PROBLEMS, "vllm_args_invalid")
_CONFIGS = ("target.config", "draft.config")


@router.post(
    "/drafting-plan",
    operation_id="postDraftingPlan",
    response_model=DraftingPlanDoc,
    openapi_extra=json_body(DraftingPlanRequest),
    responses=problems(*_CODES),
)
async def post_drafting_plan(request: Request, context: Ctx) -> Response:
    """Whether a target and a drafter will work together: method, mask token, load config, placement, hidden states.

    Problems of the pair, a missing mask token id included, are findings of a 200; a 4xx says that the request itself
    cannot be answered. `ok` is false where a finding is an error.
    """
    body = await read_json(request, context.max_body_bytes, config_fields=_CONFIGS)
    document = await _document(context, body.value, body, "")
    return Response(msgspec.json.encode(document), media_type="application/json")


@router.post(
    "/drafting-plans",
    operation_id="postDraftingPlans",
    response_model=list[PlanOrProblem],
    openapi_extra=json_list_body(DraftingPlanRequest, MOST_PLANS),
    responses=problems(*BODY_PROBLEMS, "invalid_request"),
)
async def post_drafting_plans(request: Request, context: Ctx) -> Response:
    """As the single one, for a list of requests: one answer each, in their order; a bad one spoils no other."""
    body = await read_json_list(request, context.max_body_bytes, MOST_PLANS, config_fields=_CONFIGS)
    answers = []
    for index, asked in enumerate(body.value):
        answers.append(await _plan_or_problem(context, asked, body, index, request.url.path))
        await asyncio.sleep(0)  # other requests are not to wait for a long list
    return Response(msgspec.json.encode(answers), media_type="application/json")


async def _plan_or_problem(
    context: Context, asked: Any, body: JsonBody, index: int, path: str
) -> dict[str, Any]:
    try:
        return {"plan": await _document(context, asked, body, f"{index}."), "problem": None}
    except ProblemError as problem:
        return {"plan": None, "problem": msgspec.Raw(problem.body(path))}


async def _document(context: Context, value: Any, body: JsonBody, prefix: str) -> dict[str, Any]:
    asked = validated(DraftingPlanRequest, value)
    args = _vllm_args(asked.vllm_args)
    fields = _merged(asked, args)
    target = _Side("target", asked.target, fields.target_name, fields.target_revision)
    draft = _Side("draft", asked.draft, fields.draft_name, fields.draft_revision)
    pair = _Pair(await _given(context, target, body, prefix), await _given(context, draft, body, prefix))
    plan = drafting_plan(_request(asked, fields, pair))
    return await _shown(context, plan, pair, () if args is None else args.ignored)


class _Side(NamedTuple):
    """One model of the pair: its field, what stands there, and its name from the field or the command line."""

    field: str
    ref: ModelRef | None
    name: str | None
    revision: str | None


class _Pair(NamedTuple):
    target: Given | None
    draft: Given | None

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(finding for given in self if given is not None for finding in given.findings)


def _vllm_args(given: str | list[str] | None) -> VllmArgs | None:
    if given is None:
        return None
    try:
        return parse_vllm_args(given if isinstance(given, str) else shlex.join(given))
    except VllmArgsError as error:
        errors = [FieldProblem("vllm_args", error.code, error.detail)]
        raise ProblemError("vllm_args_invalid", error.detail, errors=errors) from None


def _merged(asked: DraftingPlanRequest, args: VllmArgs | None) -> PlanFields:
    """Fields and command line together; an inline config takes the place of a named model."""
    names: dict[str, Any] = {}
    for side, ref in (("target", asked.target), ("draft", asked.draft)):
        if ref is not None and ref.model is not None:
            names |= {f"{side}_name": ref.model, f"{side}_revision": ref.revision}
    fields = PlanFields(
        **names,
        **asked.parallel.model_dump(),
        method=asked.method,
        num_speculative_tokens=asked.num_speculative_tokens,
        max_num_batched_tokens=asked.max_num_batched_tokens,
        max_num_seqs=asked.max_num_seqs,
        load_config=asked.load_config,
        draft_load_config=asked.draft_load_config,
        dtype=asked.dtype,
        enable_prefix_caching=asked.enable_prefix_caching,
        engine=engine_of(asked.engine),
    )
    try:
        merged = merge(fields, args)
    except ContradictionError as error:
        raise invalid(error.field, error.detail, "contradicts_vllm_args") from None
    if merged.method is not None and family_of(merged.method) is None:
        place = "method" if asked.method is not None else "vllm_args"
        raise invalid(place, "There is no such method of speculative decoding.", "unknown_method")
    return merged


async def _given(context: Context, side: _Side, body: JsonBody, prefix: str) -> Given | None:
    if side.ref is not None and side.ref.config is not None:
        return inline(side.ref.config, body.duplicates_below(f"{prefix}{side.field}.config"))
    if side.name is None:
        return None
    field = f"{side.field}.model" if side.ref is not None else "vllm_args"
    return await load_model(context, side.name, side.revision, field)


def _request(asked: DraftingPlanRequest, fields: PlanFields, pair: _Pair) -> PlanRequest:
    try:
        return fields.request(
            None if pair.target is None else pair.target.config,
            None if pair.draft is None else pair.draft.config,
            trained_mask_token_id=asked.trained_mask_token_id,
        )
    except LoadConfigError as error:
        raise load_config_problem(error) from None


async def _shown(
    context: Context, plan: DraftingPlan, pair: _Pair, ignored: tuple[str, ...]
) -> dict[str, Any]:
    document = msgspec.structs.asdict(plan)
    mask = plan.mask_token
    if mask is not None and mask.mask_token_id is not None:
        text = await token_text(context, mask.mask_token_id, pair.draft, pair.target)
        document["mask_token"] = msgspec.structs.replace(mask, token=text)
    return document | {
        "findings": ordered((*plan.findings, *pair.findings)),
        "target": None if pair.target is None else pair.target.document,
        "draft": None if pair.draft is None else pair.draft.document,
        "ignored_vllm_args": ignored,
    }
