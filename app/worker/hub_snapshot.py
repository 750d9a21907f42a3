"""A checkpoint of the model hub: from its cache on this machine, or fetched. Code of a repository is never run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..sources import HubMode, SourceError, load_operator_config
from .checkpoint import (
    INDEX_FILE,
    Checkpoint,
    has_tokenizer,
    read_config,
    read_directory,
    shard_names,
)
from .target_error import TargetError

_REPO_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?")
_SMALL_FILES = ("*.json", "*.txt", "*.model", "*.jinja")


def is_hub_id(target: str) -> bool:
    """Whether a name could be a repository (``org/name``) rather than a path."""
    return _REPO_ID.fullmatch(target) is not None and ".." not in target


def find_checkpoint(target: str, revision: str | None, hub: HubMode) -> Checkpoint:
    """The checkpoint that ``target`` names: a directory, else a repository of the hub.

    Raises:
        TargetError: ``target_not_found``, ``target_invalid``, ``checkpoint_unsafe``, ``hub_unreachable``,
            ``hub_unauthorized``.
    """
    directory = Path(target).expanduser()
    if directory.is_dir() or not is_hub_id(target):
        return read_directory(directory, shown_name(target))
    if hub == "on":
        return _from_hub(target, revision)
    snapshot = _cached(target, revision, hub)
    return read_directory(snapshot, target, snapshot.name)


def find_draft_config(draft: str, hub: HubMode) -> Mapping[str, Any]:
    """The ``config.json`` of the drafter that ``draft`` names.

    Raises:
        TargetError: ``draft_not_found``, ``draft_invalid``, ``hub_unreachable``, ``hub_unauthorized``.
    """
    try:
        return load_operator_config(draft, hub=hub).config
    except SourceError as error:
        codes = {"config_invalid": "draft_invalid", "hub_timeout": "hub_unreachable"}
        code = error.code if error.code.startswith("hub_") else "draft_not_found"
        raise TargetError(codes.get(error.code, code), f"DRAFT: {error.detail}") from error


def shown_name(target: str) -> str:
    """A path's last part, which is all of it that messages tell; a hub id as it is."""
    return target if is_hub_id(target) else Path(target).expanduser().name or "the target"


def fetch_shards(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint with its shards on this machine; the same object where they are.

    Raises:
        TargetError: as ``find_checkpoint``.
    """
    if checkpoint.hub_id is None:
        return checkpoint
    directory = _fetch(checkpoint.hub_id, checkpoint.revision, list(checkpoint.shard_names))
    return read_directory(directory, checkpoint.shown, checkpoint.revision)


def _cached(repo_id: str, revision: str | None, hub: HubMode) -> Path:
    if hub == "off":
        raise TargetError(
            "target_not_found",
            f"{repo_id} is no directory on this machine and the hub is off; give a directory or set HUB to cache or on.",
        )
    return _snapshot(repo_id, revision, None, local_files_only=True)


def _fetch(repo_id: str, revision: str | None, patterns: list[str]) -> Path:
    return _snapshot(repo_id, revision, patterns, local_files_only=False)


def _from_hub(repo_id: str, revision: str | None) -> Checkpoint:
    directory = _fetch(repo_id, revision, [*_SMALL_FILES, INDEX_FILE])
    commit = directory.name
    sizes = _file_sizes(repo_id, commit)
    names = frozenset(sizes)
    shards = shard_names(directory, repo_id, names)
    return Checkpoint(
        shown=repo_id,
        directory=directory,
        config=read_config(directory, repo_id),
        shard_names=shards,
        headers=(),
        file_bytes=sum(sizes[name] for name in shards),
        revision=commit,
        hub_id=repo_id,
        has_tokenizer=has_tokenizer(names),
    )


def _file_sizes(repo_id: str, commit: str) -> dict[str, int]:
    """Names and bytes of the files at the top of a repository."""
    from huggingface_hub import HfApi  # noqa: PLC0415 - only needed for hub targets

    try:
        info = HfApi().model_info(repo_id, revision=commit, files_metadata=True)
    except Exception as error:
        raise _hub_error(repo_id, error) from error
    return {file.rfilename: file.size or 0 for file in info.siblings or () if "/" not in file.rfilename}


def _snapshot(
    repo_id: str, revision: str | None, patterns: list[str] | None, *, local_files_only: bool
) -> Path:
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - only needed for hub targets

    try:
        return Path(
            snapshot_download(
                repo_id, revision=revision, allow_patterns=patterns, local_files_only=local_files_only
            )
        )
    except Exception as error:
        raise _hub_error(repo_id, error) from error


def _hub_error(repo_id: str, error: Exception) -> TargetError:
    from huggingface_hub import errors  # noqa: PLC0415 - only needed for hub targets

    if isinstance(error, errors.GatedRepoError):
        return TargetError("hub_unauthorized", f"{repo_id} is gated; give a hub token that may read it.")
    if isinstance(error, errors.RevisionNotFoundError):
        return TargetError("target_not_found", f"{repo_id} has no such revision; check it.")
    if isinstance(error, (errors.RepositoryNotFoundError, errors.HFValidationError)):
        return TargetError(
            "target_not_found", f"{repo_id} was not found on the hub or is not accessible; check the name."
        )
    if isinstance(error, errors.LocalEntryNotFoundError):
        return TargetError(
            "target_not_found",
            f"{repo_id} is not in the hub cache on this machine; fetch it first or set HUB to on.",
        )
    return TargetError(
        "hub_unreachable", f"The hub could not deliver {repo_id}; check the network and try again."
    )
