"""Log lines: JSON for collectors, text on a terminal, each with the id of the request it belongs to."""

from __future__ import annotations

import logging
import sys
from typing import Literal

from pythonjsonlogger.json import JsonFormatter

from .api.request_context import request_id

_TEXT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
_JSON = "%(levelname)s %(name)s %(message)s"


class _Context(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        current = request_id.get()
        if current is not None:
            record.request_id = current
        # uvicorn adds its message a second time, with escape sequences for a terminal.
        vars(record).pop("color_message", None)
        return True


def configure(level: str, log_format: Literal["auto", "json", "text"]) -> None:
    """Sends every log record of this process to stderr, once."""
    as_json = log_format == "json" or (log_format == "auto" and not sys.stderr.isatty())
    handler = logging.StreamHandler()
    handler.addFilter(_Context())
    if as_json:
        rename = {"levelname": "level", "name": "logger"}
        handler.setFormatter(JsonFormatter(_JSON, rename_fields=rename, timestamp=True))
    else:
        handler.setFormatter(logging.Formatter(_TEXT))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # uvicorn's own lines about every request would double the access log.
    logging.getLogger("uvicorn.access").disabled = True
    for noisy in ("httpx", "httpcore", "huggingface_hub"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
