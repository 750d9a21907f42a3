"""The configs that the operator names (``TARGET``, ``DRAFT``): not bound by the model roots or the allow-list."""

from __future__ import annotations

from pathlib import Path

import msgspec

from .hub_environment import HubEnvironment
from .loaded import LoadedModel
from .model_sources import ModelSources
from .settings import HubMode, SourceSettings


def load_operator_config(
    model: str,
    revision: str | None = None,
    hub: HubMode = "on",
    *,
    settings: SourceSettings | None = None,
    environment: HubEnvironment | None = None,
) -> LoadedModel:
    """Load what the operator named. Blocks, and must not run on an event loop's thread.

    Like transformers, it takes an existing directory (absolute, relative, ``~``) for what it says, and everything else
    for a hub id, one without an organisation included.

    Args:
        model: directory or hub repo id.
        revision: branch, tag or commit; only with a repo id.
        hub: what may be asked of the hub; ``cache`` never uses the network.
        settings: limits; its roots, mode and allow-list are not applied.
        environment: the hub's address and cache; ``None`` takes huggingface_hub's own settings.

    Raises:
        SourceError: as ``ModelSources.load``.
    """
    limits = msgspec.structs.replace(
        settings or SourceSettings(), model_roots=(Path("/"),), hub=hub, hub_allow=()
    )
    if model and "\0" not in model:
        directory = Path(model).expanduser()
        if directory.is_dir():
            # The real path: "..", links and the working directory are the operator's to use.
            model = str(directory.resolve())
    with ModelSources(limits, environment=environment, legacy_ids=True) as sources:
        return sources.load_sync(model, revision)
