"""The OpenAPI document: bodies that the handlers read themselves, and the one error shape, added to FastAPI's own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from .answer_schemas import ProblemDoc
from .hidden_states_schemas import HiddenStatesRequest, RenewRequest
from .plan_schemas import DraftingPlanRequest
from .problem import MEDIA_TYPE, PROBLEMS
from .schemas import LoadConfigRequest, MaskTokenRequest

_REF = "#/components/schemas/{model}"
_BODIES: tuple[type[BaseModel], ...] = (
    MaskTokenRequest, LoadConfigRequest, DraftingPlanRequest, HiddenStatesRequest, RenewRequest, ProblemDoc,
)  # fmt: skip


def json_body(model: type[BaseModel], *, required: bool = True) -> dict[str, Any]:
    """``openapi_extra`` of a route that parses its body itself."""
    schema = {"$ref": _REF.format(model=model.__name__)}
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": schema}}}}


def json_list_body(model: type[BaseModel], max_items: int) -> dict[str, Any]:
    """As ``json_body``, for a list of such objects."""
    schema = {
        "type": "array",
        "items": {"$ref": _REF.format(model=model.__name__)},
        "minItems": 1,
        "maxItems": max_items,
    }
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def problems(*codes: str) -> dict[int | str, dict[str, Any]]:
    """``responses`` of a route: the codes that it may answer with, by status."""
    by_status: dict[int | str, list[str]] = {}
    for code in codes:
        by_status.setdefault(PROBLEMS[code][0], []).append(code)
    schema = {"$ref": _REF.format(model=ProblemDoc.__name__)}
    return {
        status: {
            "description": "Problem with code " + " or ".join(f"`{code}`" for code in found),
            "content": {MEDIA_TYPE: {"schema": schema}},
        }
        for status, found in sorted(by_status.items())
    }


def install(app: FastAPI, more_bodies: Iterable[type[BaseModel]] = ()) -> None:
    """Makes ``app.openapi`` answer the completed document, computed once."""
    bodies = (*_BODIES, *more_bodies)

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app, bodies)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way


def _document(app: FastAPI, bodies: tuple[type[BaseModel], ...]) -> dict[str, Any]:
    document = get_openapi(
        title=app.title,
        version=app.version,
        summary=app.summary,
        description=app.description,
        routes=app.routes,
    )
    _, definitions = models_json_schema([(model, "validation") for model in bodies], ref_template=_REF)
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    schemas.update(definitions["$defs"])
    # FastAPI announces its own validation error, which this service never answers with.
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    for path in document["paths"].values():
        for operation in path.values():
            response = operation["responses"].get("422")
            if response is not None and MEDIA_TYPE not in response.get("content", {}):
                operation["responses"]["422"] = problems("invalid_request")[422]
    document["components"]["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"bearer": []}, {}]
    return document
