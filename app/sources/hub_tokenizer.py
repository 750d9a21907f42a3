"""The tokenizer files of one hub commit, fetched when a token is first asked for."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from .errors import SourceError
from .hub_cache import CachedFile, HubCache
from .hub_client import HubFile, HubFileTooLargeError, hub_client
from .hub_environment import HubEnvironment
from .settings import SourceSettings

# After a file could not be had, it is not asked for again for this long.
RETRY_S: Final = 30.0


class HubTokenizer:
    """Reads from the hub cache, else downloads into it, within ``hub_timeout_s`` a file.

    On an event loop's thread, and when the settings forbid the network, only the cache is read.
    """

    def __init__(
        self, repo_id: str, commit: str, environment: HubEnvironment, settings: SourceSettings
    ) -> None:
        self._repo_id = repo_id
        self._commit = commit
        self._environment = environment
        self._settings = settings
        self._cache = HubCache(environment.cache_dir)
        self._not_before: dict[str, float] = {}

    def read(self, name: str) -> bytes | None:
        """The file's bytes, or ``None`` where there is none or it cannot be had."""
        limit = self._settings.max_tokenizer_bytes
        content = self._cache.read(self._repo_id, self._commit, name, limit)
        if content is not None or not self._may_fetch(name):
            return content
        self._not_before[name] = time.monotonic() + RETRY_S
        try:
            file = asyncio.run(self._fetch(name))
        except (SourceError, HubFileTooLargeError):
            return None
        self._cache.keep(self._repo_id, self._commit, CachedFile(name, file.content, file.etag))
        return file.content

    async def _fetch(self, name: str) -> HubFile:
        deadline = asyncio.get_running_loop().time() + self._settings.hub_timeout_s
        # A commit that was just loaded needs no second look at the allow-list.
        async with hub_client(self._environment, lambda _: True, deadline=deadline) as client:
            return await client.fetch(self._repo_id, self._commit, name, self._settings.max_tokenizer_bytes)

    def _may_fetch(self, name: str) -> bool:
        if self._settings.hub != "on" or self._environment.offline:
            return False
        if time.monotonic() < self._not_before.get(name, 0.0) or on_event_loop():
            return False
        return not self._cache.is_absent(self._repo_id, self._commit, name)


def on_event_loop() -> bool:
    """Whether an event loop runs in this thread, so that blocking would stop everything on it."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
