"""Runs the API process: listens, announces itself, and ends in good order on SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import ssl
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import uvicorn

from .api import tracing
from .api.context import Context
from .api.edge import Edge
from .logs import configure
from .main import create_app
from .settings import Settings, unknown_variables

_logger = logging.getLogger(__name__)
# uvicorn keeps idle connections open for so long; a client that reuses one later must not meet a reset.
KEEP_ALIVE_S = 75
# After SIGTERM: for callers that the kernel has connected already, and for requests on connections just opened.
DOOR_S = 0.1
LAST_WORDS_S = 1.0


class StartError(Exception):
    """The settings contradict one another; the text says what to do."""


def serve(settings: Settings) -> int:
    """Serves until SIGTERM or SIGINT; the exit status.

    Raises:
        StartError: the settings contradict one another.
    """
    configure(settings.log_level, settings.log_format)
    check(settings)
    app = create_app(settings)
    assert isinstance(app, Edge)  # noqa: S101 - what create_app returns
    server = _Server(
        uvicorn.Config(
            app,
            host=settings.host,
            port=settings.port,
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="on",
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=settings.shutdown_timeout_s,
            ssl_certfile=settings.tls_cert_file,
            ssl_keyfile=settings.tls_key_file,
        ),
        app.context,
    )
    server.run()
    return 0 if server.started else 1


def check(settings: Settings) -> None:
    """Refuses settings that would serve nobody, or too many."""
    unknown = unknown_variables()
    if unknown:
        raise StartError(f"There is no setting {', '.join(unknown)}; `draftport serve --help` lists all.")
    if settings.hub != "off" and settings.token_file is None and not settings.hub_allow and _has_hub_token():
        raise StartError(
            "A hub token is set, so callers could read private configs: set DRAFTPORT_HUB_ALLOW to the repos that "
            "may be asked for, or DRAFTPORT_TOKEN_FILE, or remove the hub token."
        )
    _check_tls(settings)
    missing = tracing.why_not_possible() if tracing.is_wanted() else None
    if missing is not None:
        raise StartError(missing)
    for root in settings.model_roots:
        if not root.is_dir():
            _logger.warning("the model root %s is no directory (yet)", root)


def _check_tls(settings: Settings) -> None:
    if settings.tls_cert_file is None or settings.tls_key_file is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(settings.tls_cert_file, settings.tls_key_file)
    except OSError as error:  # ssl.SSLError is one
        raise StartError(
            f"DRAFTPORT_TLS_CERT_FILE and DRAFTPORT_TLS_KEY_FILE cannot be used ({error.strerror or error}): "
            "give a readable PEM chain and its key."
        ) from None


def _has_hub_token() -> bool:
    """Whether huggingface_hub would send a token. Looked up without importing it, which costs half a second."""
    if os.environ.get("HF_TOKEN") or os.environ.get("HUGGING_FACE_HUB_TOKEN"):
        return True
    home = os.environ.get("HF_HOME")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface"
    default = (Path(home) if home else cache) / "token"
    path = Path(os.environ.get("HF_TOKEN_PATH") or default).expanduser()
    with contextlib.suppress(OSError):
        return bool(path.read_text().strip())
    return False


class _Server(uvicorn.Server):
    """uvicorn, but SIGTERM ends with status 0, and readiness says ``stopping`` first."""

    def __init__(self, config: uvicorn.Config, context: Context) -> None:
        super().__init__(config)
        self._context = context

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            port = self.servers[0].sockets[0].getsockname()[1]
            scheme = "https" if self.config.is_ssl else "http"
            _logger.info("listening on %s://%s:%s (docs at /docs)", scheme, self.config.host, port)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        handled = (signal.SIGTERM, signal.SIGINT)
        for number in handled:
            loop.add_signal_handler(number, self._stop, number)
        try:
            yield
        finally:
            for number in handled:
                loop.remove_signal_handler(number)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends without turning away who is already here: uvicorn by itself closes connections that were just opened."""
        for server in self.servers:
            for listening in server.sockets:
                # No more callers wait at the door; those who do are let in before it closes.
                with socket.socket(fileno=os.dup(listening.fileno())) as door:
                    door.listen(0)
        await asyncio.sleep(DOOR_S)
        for server in self.servers:
            server.close()
        until = time.monotonic() + LAST_WORDS_S
        while self.server_state.connections and time.monotonic() < until:  # noqa: ASYNC110 - uvicorn has no event
            await asyncio.sleep(0.02)
        await super().shutdown(sockets)

    def _stop(self, number: int) -> None:
        self._context.stopping = True
        self.handle_exit(number, None)


def fail(message: str) -> None:
    """Says on stderr why nothing was started."""
    sys.stderr.write(f"draftport: {message}\n")
