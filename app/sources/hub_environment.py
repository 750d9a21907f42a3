"""What huggingface_hub's own settings say: endpoint, cache, offline mode. Its token is read at each request."""

from __future__ import annotations

import os
from pathlib import Path

from msgspec import Struct


class HubEnvironment(Struct, frozen=True, kw_only=True):
    """Where the hub is and where its files are kept.

    Attributes:
        endpoint: the hub's base URL, without a slash at the end.
        cache_dir: the hub cache, shared with every other tool on the machine.
        offline: nothing may be asked of the network.
    """

    endpoint: str
    cache_dir: Path
    offline: bool

    @classmethod
    def of_process(cls) -> HubEnvironment:
        """As huggingface_hub reads ``HF_ENDPOINT``, ``HF_HUB_CACHE``, ``HF_HOME`` and ``HF_HUB_OFFLINE``.

        Imports huggingface_hub, which takes a fifth of a second the first time.
        """
        from huggingface_hub import constants  # noqa: PLC0415 - no request without a hub id should pay for it

        endpoint = os.environ.get("HF_ENDPOINT") or constants.ENDPOINT
        return cls(
            endpoint=endpoint.rstrip("/"),
            cache_dir=Path(constants.HF_HUB_CACHE),
            offline=constants.is_offline_mode(),
        )
