"""Finds a target's files and reads the small ones: ``config.json``, the shard index and the shards' headers.

Only safetensors shards are accepted: a pickle can run code when it is opened. Nothing here reads a weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..sources import SourceError, parse_config
from .safetensors_header import ShardHeader, read_shard_header
from .target_error import TargetError

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model", "tekken.json")
MAX_CONFIG_BYTES = 8 << 20
MAX_INDEX_BYTES = 64 << 20
_PICKLE_SUFFIXES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl"})


@dataclass(frozen=True)
class Checkpoint:
    """A target's files.

    Attributes:
        shown: how messages call the target: a hub id or the directory's own name, never its whole path.
        directory: where the files are.
        config: ``config.json`` as it stands.
        shard_names: file names of the weights.
        headers: what the shards hold; empty while they are still on the hub.
        file_bytes: size of all shards together.
        revision: the hub's commit, ``None`` for a directory.
        hub_id: the repository that missing shards are fetched from, ``None`` where everything is here.
    """

    shown: str
    directory: Path
    config: Mapping[str, Any]
    shard_names: tuple[str, ...]
    headers: tuple[ShardHeader, ...]
    file_bytes: int
    revision: str | None = None
    hub_id: str | None = None
    has_tokenizer: bool = field(default=False)


def read_directory(directory: Path, shown: str, revision: str | None = None) -> Checkpoint:
    """Reads the small files of a checkpoint that is complete on this machine.

    Raises:
        TargetError: ``target_not_found``, ``target_invalid`` or ``checkpoint_unsafe``.
    """
    config = read_config(directory, shown)
    names = shard_names(directory, shown, local_names(directory))
    headers = tuple(read_shard_header(directory / name, shown) for name in names)
    return Checkpoint(
        shown=shown,
        directory=directory,
        config=config,
        shard_names=names,
        headers=headers,
        file_bytes=sum(header.data_bytes for header in headers),
        revision=revision,
        has_tokenizer=has_tokenizer(local_names(directory)),
    )


def read_config(directory: Path, shown: str) -> dict[str, Any]:
    """``config.json`` of a directory.

    Raises:
        TargetError: ``target_not_found`` (no such directory, or no ``config.json`` in it), ``target_invalid``.
    """
    if not directory.is_dir():
        raise TargetError("target_not_found", f"{shown} is no directory on this machine; check the path.")
    path = directory / CONFIG_FILE
    if not path.is_file():
        raise TargetError(
            "target_not_found", f"{shown} has no {CONFIG_FILE}; give a directory that holds a checkpoint."
        )
    return read_json_object(path, shown)


def read_json_object(path: Path, shown: str, max_bytes: int = MAX_CONFIG_BYTES) -> dict[str, Any]:
    """A JSON file that holds an object, within the limits that hold for every config here.

    Raises:
        TargetError: ``target_invalid``.
    """
    try:
        with path.open("rb") as file:
            return parse_config(file.read(max_bytes + 1), max_bytes=max_bytes).config
    except SourceError as error:
        raise TargetError(
            "target_invalid", f"{path.name} of {shown}: {error.detail} Copy the file anew."
        ) from error
    except OSError as error:
        raise TargetError(
            "target_invalid", f"{path.name} of {shown} can't be read; check its permissions."
        ) from error


def local_names(directory: Path) -> frozenset[str]:
    """Names of the files that lie directly in a directory."""
    try:
        return frozenset(entry.name for entry in directory.iterdir() if entry.is_file())
    except OSError:
        return frozenset()


def has_tokenizer(names: frozenset[str]) -> bool:
    """Whether a checkpoint brings a tokenizer."""
    return not names.isdisjoint(TOKENIZER_FILES)


def shard_names(directory: Path, shown: str, present: frozenset[str]) -> tuple[str, ...]:
    """File names of the weights: the lone ``model.safetensors``, or those that the index names.

    Args:
        directory: where the index lies.
        shown: how messages call the target.
        present: names of the checkpoint's files, here or on the hub.

    Raises:
        TargetError: ``checkpoint_unsafe`` (pickles only), ``target_invalid`` (none, or not all of them).
    """
    if WEIGHTS_FILE in present:
        return (WEIGHTS_FILE,)
    if INDEX_FILE in present:
        return _indexed_names(
            read_json_object(directory / INDEX_FILE, shown, MAX_INDEX_BYTES), shown, present
        )
    pickles = sorted(name for name in present if Path(name).suffix in _PICKLE_SUFFIXES)
    if pickles:
        raise TargetError(
            "checkpoint_unsafe",
            f"{shown} has its weights in {pickles[0]} only, a pickle that could run code when opened; "
            "save the model as safetensors.",
        )
    raise TargetError(
        "target_invalid", f"{shown} has neither {WEIGHTS_FILE} nor {INDEX_FILE}; give a complete checkpoint."
    )


def _indexed_names(index: Mapping[str, Any], shown: str, present: frozenset[str]) -> tuple[str, ...]:
    weight_map = index.get("weight_map")
    values = list(weight_map.values()) if isinstance(weight_map, dict) else []
    names = sorted({value for value in values if isinstance(value, str)})
    if not names or len(names) != len({str(value) for value in values}):
        raise TargetError("target_invalid", f"{INDEX_FILE} of {shown} names no shards; copy the file anew.")
    # A name with a separator could reach outside the checkpoint.
    foreign = [name for name in names if Path(name).name != name or not name.endswith(".safetensors")]
    if foreign:
        raise TargetError(
            "checkpoint_unsafe",
            f"{INDEX_FILE} of {shown} names shards that are no safetensors files beside it; save the model anew.",
        )
    missing = [name for name in names if name not in present]
    if missing:
        raise TargetError(
            "target_invalid",
            f"{shown} lacks {len(missing)} of {len(names)} shards, {missing[0]} first; copy the checkpoint anew.",
        )
    return tuple(names)
