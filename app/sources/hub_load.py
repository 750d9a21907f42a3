"""One load of one hub repo: from the network, from the local hub cache, or from the one in place of the other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec

from ..drafting.findings import Finding
from .errors import SourceError
from .hub_cache import CachedFile, HubCache
from .hub_client import HubClient, HubFile, HubFileTooLargeError, hub_client
from .hub_environment import HubEnvironment
from .hub_tokenizer import HubTokenizer
from .json_text import ParsedConfig, duplicate_key_findings, parse_config
from .loaded import LoadedModel
from .local import optional_config
from .reference import HubReference
from .settings import SourceSettings
from .small_files import CONFIG, GENERATION_CONFIG
from .tokens import TokenLookup

_T = TypeVar("_T")


class RunBlocking(Protocol):
    """Runs a blocking call somewhere it may block."""

    def __call__(self, call: Callable[[], _T]) -> Awaitable[_T]:
        """Await the call's result."""


class HubLoad:
    """One load.

    Args:
        reference: repo and revision.
        environment: where the hub and its cache are.
        settings: modes and limits.
        run: runs blocking calls.
        allows: whether the allow-list holds a repo id.
    """

    def __init__(
        self,
        reference: HubReference,
        environment: HubEnvironment,
        *,
        settings: SourceSettings,
        run: RunBlocking,
        allows: Callable[[str], bool],
    ) -> None:
        self._reference = reference
        self._environment = environment
        self._settings = settings
        self._run = run
        self._allows = allows
        self._cache = HubCache(environment.cache_dir)

    async def remote(self, deadline: float) -> LoadedModel:
        """From the network, before ``deadline`` on the loop's clock; what was had is kept in the cache."""
        async with hub_client(self._environment, self._allows, deadline=deadline) as client:
            file = await self._fetch_config(client)
            if file.content is None or file.commit is None:
                raise SourceError("config_not_found", "The hub repo holds no config.json at this revision.")
            parsed = await self._run(partial(self._parsed, file.content))
            # Only what parses is kept: a captive portal's page must not poison the cache.
            await self._run(partial(self._store_config, file.commit, file))
            # A second before the end, so that a stall here cannot spoil what is already there.
            early = deadline - min(1.0, self._settings.hub_timeout_s / 10)
            generation_config, findings = await self._fetch_generation_config(client, file.commit, early)
        return self._model(file.commit, parsed, generation_config, findings)

    async def cached(self) -> LoadedModel:
        """From the local hub cache alone."""
        return await self._run(self._cached)

    async def instead_of(self, error: SourceError, fallback: LoadedModel | None) -> LoadedModel:
        """An answer from the disk, or the ``fallback``, in place of ``error``, and saying so."""
        try:
            model = await self.cached()
        except SourceError:
            if fallback is None:
                raise error from None
            model = fallback
        if self._reference.is_commit or any(
            finding.code == "config_from_cache" for finding in model.findings
        ):
            return model
        return msgspec.structs.replace(model, findings=(*model.findings, _from_cache(model.revision)))

    async def _fetch_config(self, client: HubClient) -> HubFile:
        limit = self._settings.max_file_bytes
        try:
            return await client.fetch(self._reference.repo_id, self._reference.revision, CONFIG, limit)
        except HubFileTooLargeError:
            raise SourceError(
                "config_invalid", f"config.json is larger than the {limit} bytes allowed."
            ) from None

    async def _fetch_generation_config(
        self, client: HubClient, commit: str, deadline: float
    ) -> tuple[dict[str, Any] | None, tuple[Finding, ...]]:
        """Nice to have: trouble with it is a finding, never the end of the load."""
        repo_id, name = self._reference.repo_id, GENERATION_CONFIG
        limit = self._settings.max_file_bytes
        content = await self._run(partial(self._cache.read, repo_id, commit, name, limit))
        try:
            if content is None and not await self._run(partial(self._cache.is_absent, repo_id, commit, name)):
                async with asyncio.timeout_at(deadline):
                    file = await client.fetch(repo_id, commit, name, limit)
                content = file.content
                kept = CachedFile(name, content, file.etag)
                await self._run(partial(self._cache.keep, repo_id, commit, kept))
        except (SourceError, HubFileTooLargeError, TimeoutError):
            return None, (_no_generation_config(),)
        return await self._run(partial(optional_config, content, self._settings)), ()

    def _store_config(self, commit: str, file: HubFile) -> None:
        repo_id = self._reference.repo_id
        self._cache.keep(repo_id, commit, CachedFile(CONFIG, file.content, file.etag))
        self._cache.store_ref(repo_id, self._reference.revision, commit)

    def _cached(self) -> LoadedModel:
        repo_id = self._reference.repo_id
        commit = self._cache.commit_of(repo_id, self._reference.revision)
        if commit is None:
            raise _not_cached(has_repo=self._cache.has_repo(repo_id))
        limit = self._settings.max_file_bytes
        content = self._cache.read(repo_id, commit, CONFIG, limit)
        if content is None:
            raise SourceError(
                "config_not_found",
                "The hub cache holds no readable config.json for this revision of the repo.",
            )
        generation_config = self._cache.read(repo_id, commit, GENERATION_CONFIG, limit)
        return self._model(
            commit, self._parsed(content), optional_config(generation_config, self._settings), ()
        )

    def _parsed(self, content: bytes) -> ParsedConfig:
        limit = self._settings.max_file_bytes
        return parse_config(content, max_depth=self._settings.max_depth, max_bytes=limit)

    def _model(
        self,
        commit: str,
        parsed: ParsedConfig,
        generation_config: dict[str, Any] | None,
        findings: tuple[Finding, ...],
    ) -> LoadedModel:
        tokenizer = HubTokenizer(self._reference.repo_id, commit, self._environment, self._settings)
        return LoadedModel(
            id=self._reference.repo_id,
            revision=commit,
            config=parsed.config,
            config_sha256=parsed.sha256,
            token_text=TokenLookup(tokenizer.read),
            duplicate_keys=parsed.duplicate_keys,
            findings=duplicate_key_findings(parsed.duplicate_keys) + findings,
            generation_config=generation_config,
            config_bytes=parsed.byte_size,
        )


def _from_cache(commit: str | None) -> Finding:
    detail = (
        f"The hub could not be asked, so the answer is for commit {commit}, which the local cache holds; the branch "
        "may have moved on. Ask again when the hub is reachable, or name a commit."
    )
    return Finding("info", "config_from_cache", detail, fields=("model",), evidence="run by us")


def _no_generation_config() -> Finding:
    detail = (
        "generation_config.json could not be had from the hub; checks that need it were left out. Ask again."
    )
    return Finding("info", "generation_config_unavailable", detail, fields=("model",), evidence="run by us")


def _not_cached(*, has_repo: bool) -> SourceError:
    advice = "download it first (hf download), or set DRAFTPORT_HUB=on"
    if has_repo:
        return SourceError("revision_not_found", f"The hub cache does not hold this revision; {advice}.")
    return SourceError("model_not_found", f"The hub cache does not hold this repo; {advice}.")
