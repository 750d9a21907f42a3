"""Downloads of small files from the hub, bounded in time and memory whatever the server does.

huggingface_hub gives the client (proxies, certificates, hooks), the URL and the token. The request itself is made here,
on asyncio, where one deadline ends everything: slow headers and slow bodies, too, which per-read time-outs let through.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

from msgspec import Struct

from .errors import SourceError
from .hub_answers import declared_size, etag_of, is_missing_file, refusal
from .hub_environment import HubEnvironment
from .reference import is_commit
from .small_files import SMALL_FILES

MAX_REDIRECTS: Final = 5


class HubFile(Struct, frozen=True):
    """One file of one commit.

    Attributes:
        commit: 40 hex digits.
        content: the bytes, ``None`` when the commit holds no such file.
        etag: the hub's name for the bytes, ``None`` when it gave none.
    """

    commit: str | None
    content: bytes | None
    etag: str | None = None


class HubFileTooLargeError(Exception):
    """The file has more bytes than allowed."""


class HubClient:
    """An open client; made by ``hub_client``."""

    def __init__(
        self,
        session: Any,
        headers: dict[str, str],
        environment: HubEnvironment,
        allows: Callable[[str], bool],
    ) -> None:
        self._session = session
        self._headers = headers
        self._environment = environment
        self._allows = allows

    async def fetch(self, repo_id: str, revision: str, name: str, max_bytes: int) -> HubFile:
        """Download one of the small files.

        Raises:
            SourceError: what the hub answered, or ``hub_unreachable``.
            HubFileTooLargeError: more than ``max_bytes``, as announced or as sent.
        """
        if name not in SMALL_FILES:
            msg = f"{name} is not one of the small files"
            raise ValueError(msg)
        url = _file_url(repo_id, name, revision, self._environment.endpoint)
        headers = self._headers
        known: dict[str, str] = {}
        for _ in range(MAX_REDIRECTS + 1):
            request = self._session.build_request("GET", url, headers=headers, timeout=None)
            response = await self._session.send(request, stream=True, follow_redirects=False)
            try:
                # The first answer describes the file, the last one may be a plain store's.
                known = {
                    **{key.lower(): value for key, value in response.headers.items()},
                    **_metadata(known),
                }
                if not response.has_redirect_location:
                    return await _file(response, known, max_bytes, with_token="authorization" in headers)
                url, headers = self._next_hop(url, response.headers["location"], headers)
            finally:
                await response.aclose()
        raise _not_a_hub("redirects without end")

    def _next_hop(self, url: str, location: str, headers: dict[str, str]) -> tuple[str, dict[str, str]]:
        try:
            target = urljoin(url, location)
            here, there = urlsplit(url), urlsplit(target)
            same_origin = _origin(here) == _origin(there)
        except ValueError:
            raise _not_a_hub("redirects to what is no address") from None
        if there.scheme not in ("http", "https") or (here.scheme, there.scheme) == ("https", "http"):
            raise _not_a_hub("redirects to an address that is not https")
        if not same_origin:
            # Large files lie elsewhere, behind signed addresses; the token is the hub's only.
            return target, {key: value for key, value in headers.items() if key != "authorization"}
        renamed = _repo_in(target, self._environment.endpoint)
        if renamed is not None and not self._allows(renamed):
            raise SourceError(
                "model_not_allowed", "The hub repo was renamed to one that DRAFTPORT_HUB_ALLOW does not list."
            )
        return target, headers


@asynccontextmanager
async def hub_client(
    environment: HubEnvironment, allows: Callable[[str], bool], *, deadline: float
) -> AsyncIterator[HubClient]:
    """A client for one load, which ends at ``deadline`` on the loop's clock.

    Raises:
        SourceError: ``hub_timeout`` at the deadline; ``hub_unreachable`` when the connection fails or breaks.
    """
    try:
        async with asyncio.timeout_at(deadline):
            session, headers = await asyncio.to_thread(_open_session)
            async with session:
                yield HubClient(session, headers, environment, allows)
    except TimeoutError:
        raise SourceError(
            "hub_timeout", "The hub did not answer in time; try again later.", retry_after_s=5.0
        ) from None
    except _connection_errors():
        raise SourceError(
            "hub_unreachable",
            "The hub cannot be reached, or broke off its answer; check the network and HF_ENDPOINT.",
            retry_after_s=5.0,
        ) from None


def _connection_errors() -> tuple[type[Exception], ...]:
    """huggingface_hub moved from httpx to httpx2; its errors are those of whichever its client is made of."""
    from huggingface_hub import errors  # noqa: PLC0415 - imported by the environment already

    library = importlib.import_module(_http_library(errors.HfHubHTTPError))
    return (library.HTTPError, library.InvalidURL, library.StreamError, errors.OfflineModeIsEnabled, OSError)


def _http_library(error: type[Exception]) -> str:
    roots = (kind.__module__.partition(".")[0] for kind in error.__mro__)
    return next(root for root in roots if root.startswith("httpx"))


def _file_url(repo_id: str, name: str, revision: str, endpoint: str) -> str:
    from huggingface_hub import hf_hub_url  # noqa: PLC0415 - imported by the environment already

    return hf_hub_url(repo_id, name, revision=revision, endpoint=endpoint)


def _open_session() -> tuple[Any, dict[str, str]]:
    """The library's client and the headers of each request. Blocks: certificates are read, a token may be refreshed.

    The library's own helper for headers is left alone, since it asks the hub what else to send.
    """
    from huggingface_hub import constants, get_async_session, get_token  # noqa: PLC0415 - as above

    # Compressed answers could unfold to any size.
    headers = {"user-agent": "draftport", "accept-encoding": "identity"}
    if constants.HF_HUB_USER_AGENT_ORIGIN:
        headers["user-agent"] += f"; origin/{constants.HF_HUB_USER_AGENT_ORIGIN}"
    if not constants.HF_HUB_DISABLE_IMPLICIT_TOKEN:
        try:
            token = get_token()
        except Exception:  # noqa: BLE001 - exchanging and refreshing tokens fails in many undocumented ways
            raise SourceError("hub_unauthorized", "The hub token cannot be had; check HF_TOKEN.") from None
        if token is not None:
            headers["authorization"] = f"Bearer {_checked(token)}"
    return get_async_session(), headers


def _checked(token: str) -> str:
    if not (token.isascii() and token.isprintable()):
        raise SourceError(
            "hub_unauthorized", "The hub token holds characters that no token has; check HF_TOKEN."
        )
    return token


def _metadata(headers: dict[str, str]) -> dict[str, str]:
    names = ("x-repo-commit", "x-linked-etag", "x-linked-size")
    return {name: headers[name] for name in names if name in headers}


async def _file(response: Any, headers: dict[str, str], max_bytes: int, *, with_token: bool) -> HubFile:
    status = response.status_code
    commit = headers.get("x-repo-commit")
    if is_missing_file(status, headers):
        return HubFile(commit if commit and is_commit(commit) else None, None)
    if status >= 400:
        raise refusal(status, headers, with_token=with_token)
    if status != 200 or commit is None or not is_commit(commit):
        raise _not_a_hub("does not name the commit, as a hub does")
    if headers.get("content-encoding", "identity") != "identity":
        raise _not_a_hub("compresses its answer unasked")
    linked_size = declared_size(headers, "x-linked-size")
    sizes = (linked_size, declared_size(headers, "content-length"))
    if any(size is not None and size > max_bytes for size in sizes):
        raise HubFileTooLargeError
    content = await _body(response, max_bytes)
    if linked_size is not None and linked_size != len(content):
        raise _not_a_hub("sends another number of bytes than it announced")
    return HubFile(commit, content, etag_of(headers))


async def _body(response: Any, max_bytes: int) -> bytes:
    content = bytearray()
    async for chunk in response.aiter_raw():
        content += chunk
        if len(content) > max_bytes:
            raise HubFileTooLargeError
    return bytes(content)


def _origin(parts: Any) -> tuple[str, str | None, int | None]:
    default = partial({"http": 80, "https": 443}.get, parts.scheme)
    return parts.scheme, parts.hostname, parts.port or default()


def _repo_in(url: str, endpoint: str) -> str | None:
    """The repo id of a resolve URL on the endpoint."""
    path = url.removeprefix(endpoint + "/")
    parts = path.split("/")
    return "/".join(parts[:2]) if path != url and len(parts) > 3 and parts[2] == "resolve" else None


def _not_a_hub(what: str) -> SourceError:
    return SourceError("hub_unreachable", f"The server at the hub's address {what}; check HF_ENDPOINT.")
