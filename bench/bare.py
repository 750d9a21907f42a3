"""The limit: the same framework, answering with a constant of the same size."""

import os

from fastapi import FastAPI
from starlette.responses import Response

app = FastAPI(telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False})
BODY = b'{"a": "' + b"x" * (int(os.environ.get("BENCH_BODY_BYTES", "400")) - 9) + b'"}'


@app.get("/constant")
async def constant() -> Response:
    """A constant."""
    return Response(BODY, media_type="application/json")
