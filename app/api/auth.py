"""The bearer token: read from a file, read again when the file changes, compared in constant time."""

from __future__ import annotations

import hmac
import logging
import time
from pathlib import Path

_logger = logging.getLogger(__name__)
RECHECK_S = 1.0
MAX_TOKEN_BYTES = 4096


class TokenFileError(Exception):
    """The token file cannot be read or holds no token."""


class TokenFile:
    """The token of a mounted secret.

    A file that cannot be read later on (a secret is being replaced) leaves the last good token in force.

    Raises:
        TokenFileError: at start, when there is no token to begin with: better no service than an open one.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._token = b""
        self._checked_at = 0.0
        try:
            self._read()
        except OSError as error:
            raise TokenFileError(f"the token file cannot be read: {error.strerror}") from error

    def allows(self, authorization: bytes | None) -> bool:
        """Whether an ``Authorization`` header carries the token."""
        self._refresh()
        scheme, _, given = (authorization or b"").partition(b" ")
        matches = hmac.compare_digest(given.strip(), self._token)
        return matches and scheme.lower() == b"bearer"

    def _refresh(self) -> None:
        now = time.monotonic()
        if now - self._checked_at < RECHECK_S:
            return
        self._checked_at = now
        try:
            self._read()
        except (OSError, TokenFileError) as error:
            _logger.warning("keeping the last token: %s", error)

    def _read(self) -> None:
        status = self._path.stat()
        stamp = (status.st_mtime_ns, status.st_ino, status.st_size)
        if stamp == self._stamp:
            return
        with self._path.open("rb") as file:
            token = file.read(MAX_TOKEN_BYTES + 1).strip()
        if not token or len(token) > MAX_TOKEN_BYTES:
            raise TokenFileError(f"the token file must hold a token of 1 to {MAX_TOKEN_BYTES} bytes")
        if self._token and token != self._token:
            _logger.info("the bearer token was replaced")
        self._stamp, self._token = stamp, token
