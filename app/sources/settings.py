"""Limits and permissions of the model sources."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypeAlias

from msgspec import Struct

HubMode: TypeAlias = Literal["off", "cache", "on"]


class SourceSettings(Struct, frozen=True, kw_only=True):
    """What callers may ask for, and how much it may cost.

    Attributes:
        model_roots: absolute directories; only what lies below one of them may be named by a path.
        hub: ``off`` refuses hub ids, ``cache`` reads the local hub cache only, ``on`` may use the network.
        hub_allow: case-sensitive ``fnmatch`` patterns on ``org/name``; empty allows every repo.
        hub_timeout_s: seconds in total that one load may spend on the hub, whatever the hub does.
        hub_concurrency: loads that may talk to the hub at the same time; others wait within their own time-out.
        max_file_bytes: bound on config.json and generation_config.json.
        max_tokenizer_bytes: bound on a tokenizer file.
        max_depth: bound on nesting in a JSON file.
        cache_entries: how many loaded models are kept.
        cache_bytes: bound on the kept models' config texts, in bytes of JSON.
        local_recheck_s: seconds for which a local directory, or the hub cache, is taken to be unchanged.
        hub_recheck_s: seconds for which a branch or tag is taken to name the same commit. Commits never change.
        hub_error_recheck_s: seconds for which the hub's refusal is repeated without asking it again.
        hub_down_recheck_s: seconds for which a cached answer given in the hub's place stands, so that a hub that stalls
            makes few requests wait for it.
        threads: blocking file reads that may run at the same time.
    """

    model_roots: tuple[Path, ...] = ()
    hub: HubMode = "off"
    hub_allow: tuple[str, ...] = ()
    hub_timeout_s: float = 10.0
    hub_concurrency: int = 8
    max_file_bytes: int = 8 << 20
    max_tokenizer_bytes: int = 48 << 20
    max_depth: int = 64
    cache_entries: int = 256
    cache_bytes: int = 32 << 20
    local_recheck_s: float = 2.0
    hub_recheck_s: float = 300.0
    hub_error_recheck_s: float = 2.0
    hub_down_recheck_s: float = 30.0
    threads: int = 4

    def __post_init__(self) -> None:
        """Refuse a root that is not absolute: what it means would depend on the working directory."""
        for root in self.model_roots:
            if not root.is_absolute():
                msg = "every model root must be an absolute path"
                raise ValueError(msg)
