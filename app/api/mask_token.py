"""``/v1/mask-token``."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Query, Request
from pydantic import ConfigDict
from starlette.responses import Response

from ..drafting.engines import EngineRef
from ..drafting.mask_token import MaskTokenError
from ..drafting.mask_token_answer import answer_mask_token
from .answer import Answer, conditional_response
from .answer_schemas import MaskTokenAnswerDoc
from .body import read_json, validated
from .context import Context, context_of
from .loading import Given, engine_of, load_model, load_ref, token_text
from .openapi import json_body, problems
from .problem import ProblemError
from .schemas import EngineText, MaskTokenRequest, ModelName, RequestModel, Revision

router = APIRouter(prefix="/v1/mask-token", tags=["metadata"])
Ctx = Annotated[Context, Depends(context_of)]
MODEL_PROBLEMS = (
    "invalid_request", "model_not_allowed", "model_not_found", "revision_not_found", "config_not_found",
    "config_invalid", "hub_unauthorized", "hub_unreachable", "hub_timeout",
)  # fmt: skip
BODY_PROBLEMS = ("malformed_json", "request_too_large", "unsupported_media_type")
_CODES = (*MODEL_PROBLEMS, "mask_token_missing", "mask_token_invalid")


class MaskTokenQuery(RequestModel):
    """The same question as a query string."""

    model_config = ConfigDict(extra="forbid")
    model: ModelName
    revision: Revision | None = None
    target: ModelName | None = None
    target_revision: Revision | None = None
    engine: EngineText | None = None


@router.get("", operation_id="getMaskToken", response_model=MaskTokenAnswerDoc, responses=problems(*_CODES))
async def get_mask_token(
    request: Request, query: Annotated[MaskTokenQuery, Query()], context: Ctx
) -> Response:
    """The mask token id that the engine will read from the drafter's config, where from, and what to know about it.

    The answer depends on the config and the query alone: it has a strong ETag, and If-None-Match gives 304.
    """
    given = await load_model(context, query.model, query.revision)
    target = None
    if query.target is not None:
        target = await load_model(context, query.target, query.target_revision, "target")
    answer = await _answer(context, given, target, engine_of(query.engine))
    return conditional_response(request, answer)


@router.post(
    "",
    operation_id="postMaskToken",
    response_model=MaskTokenAnswerDoc,
    openapi_extra=json_body(MaskTokenRequest),
    responses=problems(*_CODES, *BODY_PROBLEMS),
)
async def post_mask_token(request: Request, context: Ctx) -> Response:
    """As the GET, for an inline config, and with a target to check the id against."""
    body = await read_json(request, context.max_body_bytes, config_fields=("config", "target.config"))
    asked = validated(MaskTokenRequest, body.value)
    given = await load_ref(context, asked, body)
    target = None if asked.target is None else await load_ref(context, asked.target, body, "target")
    answer = await _answer(context, given, target, engine_of(asked.engine))
    return Response(answer.body, media_type="application/json", headers={"etag": answer.etag})


async def _answer(context: Context, given: Given, target: Given | None, engine: EngineRef | None) -> Answer:
    key = ("mask-token", given.key, None if target is None else target.key, engine)
    known = context.answers.get(key)
    if known is not None:
        return known
    document = answer_document(given, target, engine)
    text = await token_text(context, document["mask_token_id"], given, target)
    # A tokenizer that could not be reached now may be later: only a text that was found is kept.
    answer = Answer(document | {"token": text})
    return answer if text is None and given.loaded is not None else context.answers.put(key, answer)


def answer_document(given: Given, target: Given | None, engine: EngineRef | None) -> dict[str, Any]:
    """The answer as a JSON object.

    Raises:
        ProblemError: ``mask_token_missing`` or ``mask_token_invalid``, with the candidates.
    """
    try:
        answer = answer_mask_token(
            given.config, target=None if target is None else target.config, engine=engine
        )
    except MaskTokenError as error:
        raise _problem(error, given) from None
    findings = (*answer.findings, *given.findings)
    return msgspec.structs.asdict(answer) | {"findings": findings, "model": given.document}


def _problem(error: MaskTokenError, given: Given) -> ProblemError:
    extra = {
        "candidates": error.candidates,
        "method": error.method,
        "findings": (*error.findings, *given.findings),
        "model": given.document,
    }
    return ProblemError(error.code, error.detail, extra=extra)
