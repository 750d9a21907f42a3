"""The one door to models' configs: permissions, caching, and one load per model at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self, TypeVar

from .errors import SourceError
from .hub import HubModels
from .hub_environment import HubEnvironment
from .hub_load import RunBlocking
from .hub_tokenizer import on_event_loop
from .loaded import LoadedModel
from .local import LocalModels
from .model_cache import Entry, Key, ModelCache
from .reference import HubReference, LocalReference, is_commit, parse_reference
from .settings import SourceSettings
from .tokens import TokenLookup

_T = TypeVar("_T")


class ModelSources:
    """Loads models' small files from directories below the roots and from the hub.

    ``load`` and ``token_text`` belong to one event loop; ``load_sync`` to a thread without one. Neither mixes with the
    other on one object.

    Args:
        settings: what may be asked for and what it may cost.
        environment: the hub's address and cache; ``None`` takes huggingface_hub's own settings, when first needed.
        legacy_ids: also take hub ids without an organisation.
    """

    def __init__(
        self,
        settings: SourceSettings | None = None,
        *,
        environment: HubEnvironment | None = None,
        legacy_ids: bool = False,
    ) -> None:
        self._legacy_ids = legacy_ids
        self._settings = settings or SourceSettings()
        self._local = LocalModels(self._settings)
        self._hub = HubModels(self._settings, environment)
        self._models = ModelCache(self._settings.cache_entries, self._settings.cache_bytes)
        # Apart from the models, so that asking for many that do not exist pushes out none that do.
        self._refusals = ModelCache(self._settings.cache_entries, self._settings.cache_bytes)
        self._in_flight: dict[Key, asyncio.Task[LoadedModel | SourceError]] = {}
        self._pool = ThreadPoolExecutor(self._settings.threads, thread_name_prefix="draftport-sources")

    def cached(self, model: str, revision: str | None = None) -> LoadedModel | None:
        """What ``load`` would answer without looking anywhere, or ``None``. Takes about a microsecond."""
        entry = self._models.get((model, revision))
        if entry is None or time.monotonic() >= entry.fresh_until:
            return None
        return entry.outcome if isinstance(entry.outcome, LoadedModel) else None

    async def load(self, model: str, revision: str | None = None) -> LoadedModel:
        """The model's small files, at most the re-check interval old.

        A fresh answer comes from memory, without a thread and without giving up the loop. Otherwise all callers that
        want the same model share one load, which goes on when some of them are cancelled.

        Args:
            model: hub repo id (``org/name``) or absolute path below a model root.
            revision: branch, tag or commit; only with a repo id. ``None`` is the default branch.

        Raises:
            SourceError: with a key of ``SOURCE_ERROR_STATUS`` as its code.
        """
        known = self.cached(model, revision)
        if known is not None:
            return known
        key = (model, revision)
        task = self._in_flight.get(key)
        if task is None:
            self._raise_known_refusal(key)
            reference = parse_reference(model, revision, legacy_ids=self._legacy_ids)
            if isinstance(reference, HubReference):
                self._hub.refuse_unless_allowed(reference)
            task = asyncio.create_task(self._load(key, reference))
            self._in_flight[key] = task
            task.add_done_callback(lambda _: self._in_flight.pop(key, None))
        outcome = await asyncio.shield(task)
        if isinstance(outcome, SourceError):
            raise outcome.again()
        return outcome

    def load_sync(self, model: str, revision: str | None = None) -> LoadedModel:
        """As ``load``, for the command line and the worker: blocks, and must not run on an event loop's thread.

        Raises:
            SourceError: as ``load``.
            RuntimeError: an event loop runs in this thread.
        """
        known = self.cached(model, revision)
        if known is not None:
            return known
        if on_event_loop():
            msg = "load_sync would block the event loop that runs in this thread; await load instead"
            raise RuntimeError(msg)
        reference = parse_reference(model, revision, legacy_ids=self._legacy_ids)
        entry = asyncio.run(self._fresh_entry((model, revision), reference, _inline))
        return self._kept((model, revision), entry)

    async def token_text(self, loaded: LoadedModel, token_id: int) -> str | None:
        """``loaded.token_text(token_id)`` without blocking the loop; an id asked for before costs nothing."""
        lookup = loaded.token_text
        if isinstance(lookup, TokenLookup) and lookup.known(token_id):
            return lookup(token_id)
        return await self._run(lambda: lookup(token_id))

    def close(self) -> None:
        """Let the threads go; loads that still wait for one are dropped."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _load(self, key: Key, reference: LocalReference | HubReference) -> LoadedModel | SourceError:
        """An error is returned, not raised: nobody may be left to hear it."""
        self._hub.share_loop()
        try:
            return self._kept(key, await self._fresh_entry(key, reference, self._run))
        except SourceError as error:
            if isinstance(reference, HubReference):
                until = time.monotonic() + self._settings.hub_error_recheck_s
                self._refusals.put(key, Entry(outcome=error.again(), fresh_until=until))
            return error

    async def _fresh_entry(
        self,
        key: Key,
        reference: LocalReference | HubReference,
        run: RunBlocking,
    ) -> Entry:
        stale = self._models.get(key)
        if isinstance(reference, HubReference):
            fallback = stale.outcome if stale and isinstance(stale.outcome, LoadedModel) else None
            model = await self._hub.load(reference, run, fallback=fallback)
            model = _with_known_tokens(model, fallback)
            return Entry(
                outcome=model,
                fresh_until=time.monotonic() + self._hub_interval_s(reference, model),
                size_bytes=model.config_bytes,
            )
        return await run(lambda: self._local_entry(reference, stale))

    def _local_entry(self, reference: LocalReference, stale: Entry | None) -> Entry:
        if stale is not None and self._local.stamp(reference) == stale.stamp:
            outcome, stamp, size_bytes = stale.outcome, stale.stamp, stale.size_bytes
        else:
            outcome, stamp = self._local.load(reference)
            size_bytes = outcome.config_bytes
        until = time.monotonic() + self._settings.local_recheck_s
        return Entry(outcome=outcome, fresh_until=until, size_bytes=size_bytes, stamp=stamp)

    def _hub_interval_s(self, reference: HubReference, model: LoadedModel) -> float:
        codes = {finding.code for finding in model.findings}
        if codes & {"config_from_cache", "generation_config_unavailable"}:
            return self._settings.hub_down_recheck_s
        if is_commit(reference.revision):
            return float("inf")
        return self._settings.hub_recheck_s if self._settings.hub == "on" else self._settings.local_recheck_s

    def _kept(self, key: Key, entry: Entry) -> LoadedModel:
        if isinstance(entry.outcome, SourceError):
            raise entry.outcome
        self._models.put(key, entry)
        return entry.outcome

    def _raise_known_refusal(self, key: Key) -> None:
        entry = self._refusals.get(key)
        if entry is None or not isinstance(entry.outcome, SourceError):
            return
        if time.monotonic() < entry.fresh_until:
            raise entry.outcome.again()
        self._refusals.drop(key)

    async def _run(self, call: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)


async def _inline(call: Callable[[], _T]) -> _T:
    """For ``load_sync``, whose thread may block."""
    return call()


def _with_known_tokens(model: LoadedModel, older: LoadedModel | None) -> LoadedModel:
    """The older object when nothing changed: whoever caches by identity, and the tokens looked up, stay valid."""
    same = (
        older is not None
        and (older.revision, older.config_sha256) == (model.revision, model.config_sha256)
        and older.findings == model.findings
        and older.generation_config == model.generation_config
    )
    return older if same and older is not None else model
