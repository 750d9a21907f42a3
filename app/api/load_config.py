"""``/v1/load-config``."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from pydantic import ConfigDict, Field
from starlette.responses import Response

from ..drafting.load_config import LoadConfigError, parse_load_config
from ..drafting.load_config_answer import answer_load_config
from ..drafting.methods import detect_method
from .answer import Answer, conditional_response
from .answer_schemas import LoadConfigAnswerDoc
from .body import JsonBody, read_json, validated
from .context import Context, context_of
from .loading import Given, engine_of, inline, load_model
from .mask_token import BODY_PROBLEMS, MODEL_PROBLEMS
from .openapi import json_body, problems
from .problem import FieldProblem, ProblemError
from .schemas import EngineText, LoadConfigRequest, Method, ModelName, RequestModel, Revision, Text

router = APIRouter(prefix="/v1/load-config", tags=["metadata"])
Ctx = Annotated[Context, Depends(context_of)]


class LoadConfigQuery(RequestModel):
    """The same question as a query string."""

    model_config = ConfigDict(extra="forbid")
    load_format: Text = "auto"
    pipeline_parallel_size: Annotated[int, Field(ge=1, le=65536)] = 1
    model: ModelName | None = None
    revision: Revision | None = None
    method: Method | None = None
    engine: EngineText | None = None


@router.get(
    "", operation_id="getLoadConfig", response_model=LoadConfigAnswerDoc, responses=problems(*MODEL_PROBLEMS)
)
async def get_load_config(
    request: Request, query: Annotated[LoadConfigQuery, Query()], context: Ctx
) -> Response:
    """The load config that the draft model will really get, and where this engine version differs."""
    key: tuple[object, ...] = ("load-config", *query.model_dump().values())
    known = context.answers.get(key) if query.model is None else None  # a model's files may change
    if known is None:
        known = await _answer(context, _asked(query), None)
        if query.model is None:
            context.answers.put(key, known)
    return conditional_response(request, known)


@router.post(
    "",
    operation_id="postLoadConfig",
    response_model=LoadConfigAnswerDoc,
    openapi_extra=json_body(LoadConfigRequest),
    responses=problems(*MODEL_PROBLEMS, *BODY_PROBLEMS),
)
async def post_load_config(request: Request, context: Ctx) -> Response:
    """As the GET, with every field of the load config, and one of the draft's own."""
    body = await read_json(request, context.max_body_bytes, config_fields=("config",))
    asked = validated(LoadConfigRequest, body.value)
    answer = await _answer(context, asked, body)
    return Response(answer.body, media_type="application/json", headers={"etag": answer.etag})


def _asked(query: LoadConfigQuery) -> LoadConfigRequest:
    return validated(
        LoadConfigRequest,
        {
            "load_config": {"load_format": query.load_format},
            "pipeline_parallel_size": query.pipeline_parallel_size,
            "model": query.model,
            "revision": query.revision,
            "method": query.method,
            "engine": query.engine,
        },
    )


async def _answer(context: Context, asked: LoadConfigRequest, body: JsonBody | None) -> Answer:
    given: Given | None = None
    if asked.model is not None:
        given = await load_model(context, asked.model, asked.revision)
    elif asked.config is not None:
        given = inline(asked.config, body.duplicates_below("config") if body is not None else ())
    return Answer(answer_document(asked, given))


def answer_document(asked: LoadConfigRequest, given: Given | None) -> dict[str, Any]:
    """The answer as a JSON object.

    Raises:
        ProblemError: ``invalid_request`` naming the fields of a load config that do not fit.
    """
    config = None if given is None else given.config
    method: str | None = asked.method
    if method is None and config is not None:
        method = detect_method(config).method
    try:
        answer = answer_load_config(
            parse_load_config(asked.load_config),
            asked.pipeline_parallel_size,
            draft_load_config=(
                None
                if asked.draft_load_config is None
                else parse_load_config(asked.draft_load_config, at="draft_load_config")
            ),
            method=method,
            engine=engine_of(asked.engine),
            draft_config=config,
        )
    except LoadConfigError as error:
        raise load_config_problem(error) from None
    return {
        "target": answer.target,
        "draft": answer.draft,
        "changed": answer.changed,
        "reason": answer.reason,
        "engine": answer.engine,
        "engine_draft_load_format": answer.engine_draft_load_format,
        "method": answer.method,
        "findings": (*answer.findings, *(given.findings if given is not None else ())),
    }


def load_config_problem(error: LoadConfigError) -> ProblemError:
    """``invalid_request`` with every field of a load config that does not fit."""
    errors = [FieldProblem(one.field, one.code, one.detail) for one in error.errors]
    return ProblemError("invalid_request", f"{error.field}: {error.detail}", errors=errors)
