"""Models in directories below the model roots."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from .beneath import DirectoryBeneath, EscapesRootError, FileTooLargeError, NotAFileError
from .errors import SourceError
from .json_text import duplicate_key_findings, parse_config
from .loaded import LoadedModel
from .reference import LocalReference
from .settings import SourceSettings
from .small_files import CONFIG, GENERATION_CONFIG, PARAMS, TOKENIZER_FILES
from .tokens import TokenLookup

Stamp: TypeAlias = tuple[tuple[int, int, int, int] | None, ...]
_WATCHED = (CONFIG, GENERATION_CONFIG, *TOKENIZER_FILES)


class LocalModels:
    """Reads models below ``settings.model_roots``. Every call blocks on the file system."""

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings

    def load(self, reference: LocalReference) -> tuple[LoadedModel, Stamp]:
        """The model, and the stamp of its files from before they were read.

        Raises:
            SourceError: ``model_not_allowed``, ``model_not_found``, ``config_not_found`` or ``config_invalid``.
        """
        with self._directory(reference) as directory:
            stamp = _stamp(directory)
            parsed = parse_config(
                self._config_bytes(directory),
                max_depth=self._settings.max_depth,
                max_bytes=self._settings.max_file_bytes,
            )
            generation_config = self._generation_config(directory)
        loaded = LoadedModel(
            id=reference.id,
            revision=None,
            config=parsed.config,
            config_sha256=parsed.sha256,
            token_text=TokenLookup(lambda name: self._tokenizer_file(reference, name)),
            duplicate_keys=parsed.duplicate_keys,
            findings=duplicate_key_findings(parsed.duplicate_keys),
            generation_config=generation_config,
            config_bytes=parsed.byte_size,
        )
        return loaded, stamp

    def stamp(self, reference: LocalReference) -> Stamp:
        """What changes when a file that was read changes.

        Raises:
            SourceError: as ``load``, when the directory is gone or may no longer be read.
        """
        with self._directory(reference) as directory:
            return _stamp(directory)

    def _config_bytes(self, directory: DirectoryBeneath) -> bytes:
        try:
            return directory.read(CONFIG, self._settings.max_file_bytes)
        except FileNotFoundError:
            raise _config_not_found(directory) from None
        except EscapesRootError:
            raise _escapes() from None
        except FileTooLargeError:
            limit = self._settings.max_file_bytes
            raise SourceError(
                "config_invalid", f"config.json is larger than the {limit} bytes allowed."
            ) from None
        except NotAFileError:
            raise SourceError("config_invalid", "config.json is not a regular file.") from None
        except PermissionError:
            raise SourceError(
                "config_invalid", "config.json may not be read by this service; check the file's permissions."
            ) from None
        except OSError as error:
            name = errno.errorcode.get(error.errno or 0, "unknown error")
            raise SourceError("config_invalid", f"config.json could not be read ({name}).") from None

    def _generation_config(self, directory: DirectoryBeneath) -> dict[str, Any] | None:
        limit = self._settings.max_file_bytes
        content = _optional(directory, GENERATION_CONFIG, limit)
        return optional_config(content, self._settings)

    def _tokenizer_file(self, reference: LocalReference, name: str) -> bytes | None:
        try:
            with self._directory(reference) as directory:
                return _optional(directory, name, self._settings.max_tokenizer_bytes)
        except SourceError:
            return None

    @contextmanager
    def _directory(self, reference: LocalReference) -> Iterator[DirectoryBeneath]:
        with self._opened(reference) as directory:
            yield directory

    def _opened(self, reference: LocalReference) -> DirectoryBeneath:
        roots = self._roots_above(reference)
        if not roots:
            raise _outside(self._settings)
        refusal = _escapes()
        for root, parts in roots:
            try:
                return DirectoryBeneath(root, parts)
            except EscapesRootError:
                continue
            except NotAFileError:
                refusal = SourceError("model_not_found", "The path is not a directory.")
            except OSError:
                refusal = SourceError(
                    "model_not_found", "There is no such directory, or this service may not read it."
                )
        raise refusal

    def _roots_above(self, reference: LocalReference) -> list[tuple[Path, tuple[str, ...]]]:
        """The roots that the path lies below, by its spelling alone, the deepest first."""
        above = []
        for root in self._settings.model_roots:
            prefix = tuple(part for part in root.parts[1:] if part != ".")
            if reference.parts[: len(prefix)] == prefix:
                above.append((root, reference.parts[len(prefix) :]))
        return sorted(above, key=lambda pair: len(pair[1]))


def optional_config(content: bytes | None, settings: SourceSettings) -> dict[str, Any] | None:
    """A JSON object that nothing depends on: one that cannot be parsed counts as absent."""
    if content is None:
        return None
    try:
        return parse_config(content, max_depth=settings.max_depth, max_bytes=settings.max_file_bytes).config
    except SourceError:
        return None


def _optional(directory: DirectoryBeneath, name: str, max_bytes: int) -> bytes | None:
    try:
        return directory.read(name, max_bytes)
    except (OSError, EscapesRootError, NotAFileError, FileTooLargeError):
        return None


def _stamp(directory: DirectoryBeneath) -> Stamp:
    return tuple(directory.stamp(name) for name in _WATCHED)


def _config_not_found(directory: DirectoryBeneath) -> SourceError:
    detail = "The directory holds no config.json."
    if directory.stamp(PARAMS) is not None:
        detail += " It holds Mistral's params.json, which is not read; give the config inline."
    return SourceError("config_not_found", detail)


def _escapes() -> SourceError:
    return SourceError(
        "model_not_allowed",
        "A symbolic link leads out of the model root; move the files below it, or add their directory to "
        "DRAFTPORT_MODEL_ROOTS and name it directly.",
    )


def _outside(settings: SourceSettings) -> SourceError:
    if not settings.model_roots:
        detail = "Paths are not allowed, since no model root is configured; set DRAFTPORT_MODEL_ROOTS."
    else:
        detail = "The path is not below a configured model root; DRAFTPORT_MODEL_ROOTS lists them."
    return SourceError("model_not_allowed", detail)
