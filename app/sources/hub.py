"""Models on the hub: who may ask, whether the network may be used, and how many may use it at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from fnmatch import fnmatchcase
from typing import Final

from .errors import SourceError
from .hub_environment import HubEnvironment
from .hub_load import HubLoad, RunBlocking
from .loaded import LoadedModel
from .reference import HubReference
from .settings import SourceSettings

# What the hub knows for sure is never answered from the cache; what is wrong with the hub itself may be.
_HUB_TROUBLE: Final = frozenset({"hub_unreachable", "hub_timeout"})


class HubModels:
    """Loads models by hub repo id.

    Args:
        settings: modes, patterns and limits.
        environment: ``None`` reads huggingface_hub's settings when the first hub id is asked for.
    """

    def __init__(self, settings: SourceSettings, environment: HubEnvironment | None = None) -> None:
        self._settings = settings
        self._environment = environment
        self._places: asyncio.Semaphore | None = None

    def refuse_unless_allowed(self, reference: HubReference) -> None:
        """Raise ``model_not_allowed`` for what the settings exclude; costs neither disk nor network."""
        if self._settings.hub == "off":
            raise SourceError(
                "model_not_allowed", "Hub repo ids are not allowed; set DRAFTPORT_HUB to cache or on."
            )
        if not self._allows(reference.repo_id):
            raise SourceError(
                "model_not_allowed", "The hub repo is not on the allow-list; add it to DRAFTPORT_HUB_ALLOW."
            )

    async def load(
        self, reference: HubReference, run: RunBlocking, *, fallback: LoadedModel | None = None
    ) -> LoadedModel:
        """The model, within ``hub_timeout_s``.

        Args:
            reference: repo and revision.
            run: runs blocking calls.
            fallback: an older answer for the same reference, given again if the hub cannot be asked.

        Raises:
            SourceError: any of the hub's codes, ``model_not_allowed`` or ``config_invalid``.
        """
        self.refuse_unless_allowed(reference)
        environment = await run(self._get_environment)
        load = HubLoad(reference, environment, settings=self._settings, run=run, allows=self._allows)
        if self._settings.hub == "cache":
            return await load.cached()
        if environment.offline:
            return await load.instead_of(_offline(), fallback)
        if reference.is_commit:
            # A cached commit needs no network, since it can never change.
            try:
                return await load.cached()
            except SourceError:
                pass
        try:
            deadline = asyncio.get_running_loop().time() + self._settings.hub_timeout_s
            async with self._place(deadline):
                return await load.remote(deadline)
        except SourceError as error:
            if error.code not in _HUB_TROUBLE:
                raise
            return await load.instead_of(error, fallback)

    def share_loop(self) -> None:
        """From here on all loads run on one loop, so that their number can be bounded."""
        if self._places is None:
            self._places = asyncio.Semaphore(self._settings.hub_concurrency)

    @asynccontextmanager
    async def _place(self, deadline: float) -> AsyncIterator[None]:
        """One of the places at the hub; waiting for it counts towards the load's own time."""
        if self._places is None:
            yield
            return
        try:
            async with asyncio.timeout_at(deadline):
                await self._places.acquire()
        except TimeoutError:
            raise SourceError(
                "hub_timeout",
                "Too many models are being loaded from the hub; try again later.",
                retry_after_s=5.0,
            ) from None
        try:
            yield
        finally:
            self._places.release()

    def _get_environment(self) -> HubEnvironment:
        if self._environment is None:
            self._environment = HubEnvironment.of_process()
        return self._environment

    def _allows(self, repo_id: str) -> bool:
        patterns = self._settings.hub_allow
        return not patterns or any(fnmatchcase(repo_id, pattern) for pattern in patterns)


def _offline() -> SourceError:
    return SourceError(
        "hub_unreachable",
        "huggingface_hub is in offline mode (HF_HUB_OFFLINE), and the cache lacks the model.",
    )
