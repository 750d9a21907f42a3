"""What a model source answers with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from ..drafting.findings import Finding


class LoadedModel(Struct, frozen=True, eq=False, kw_only=True):
    """A model's small files, as they stand.

    Attributes:
        id: the reference asked for: a hub repo id, or a normalised absolute path.
        revision: the hub commit (40 hex digits), ``None`` for a directory.
        config: the parsed config.json. Shared between callers: never change it.
        config_sha256: hex SHA-256 of the file's bytes.
        duplicate_keys: dotted paths of keys that the file repeats; the last value is the one in ``config``.
        findings: ``duplicate_keys``, ``config_from_cache``, ``generation_config_unavailable`` where they apply.
        token_text: a token's text by id, as the tokenizer files spell it, ``None`` when no tokenizer is at hand.
            Reads files, so call it off the event loop or through ``ModelSources.token_text``; on an event loop it
            never uses the network.
        generation_config: the parsed generation_config.json, or ``None``.
        config_bytes: length of config.json in bytes.
    """

    id: str
    revision: str | None
    config: dict[str, Any]
    config_sha256: str
    token_text: Callable[[int], str | None]
    duplicate_keys: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    generation_config: dict[str, Any] | None = None
    config_bytes: int = 0
