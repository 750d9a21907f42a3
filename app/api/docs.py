"""``/docs``: Swagger UI from files that come with a package, so that it works without internet."""

from __future__ import annotations

from importlib.resources import files

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.responses import HTMLResponse
from starlette.staticfiles import StaticFiles

STATIC_PATH = "/docs/static"


def install(app: FastAPI) -> None:
    """Adds the page and the files that it needs."""
    static = str(files("fastapi_offline") / "static")
    app.mount(STATIC_PATH, StaticFiles(directory=static), name="docs-static")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return get_swagger_ui_html(
            openapi_url="/openapi.json",
            title=f"{app.title} {app.version}",
            swagger_js_url=f"{STATIC_PATH}/swagger-ui-bundle.js",
            swagger_css_url=f"{STATIC_PATH}/swagger-ui.css",
            swagger_favicon_url=f"{STATIC_PATH}/favicon.png",
        )
