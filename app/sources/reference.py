"""Model references: what a caller may name, before any file or host is touched."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

from msgspec import Struct

from .errors import SourceError

MAX_REFERENCE_CHARACTERS: Final = 1024
MAX_PATH_COMPONENTS: Final = 48
MAX_COMPONENT_BYTES: Final = 255
MAX_REVISION_CHARACTERS: Final = 200
# The hub's own rules: letters, digits, "-", "_", "."; neither "--" nor ".."; no punctuation at the ends; 96 in all.
_REPO_PART: Final = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?"
_REPO_ID: Final = re.compile(rf"{_REPO_PART}/{_REPO_PART}")
_LEGACY_REPO_ID: Final = re.compile(_REPO_PART)
_REVISION: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.+-]*)*")
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")


class LocalReference(Struct, frozen=True):
    """An absolute directory, as path components; never holds ``.``, ``..`` or an empty one."""

    parts: tuple[str, ...]

    @property
    def id(self) -> str:
        """The normalised path."""
        return "/" + "/".join(self.parts)


class HubReference(Struct, frozen=True):
    """A hub repo and the revision asked for (a branch, a tag, or a commit)."""

    repo_id: str
    revision: str

    @property
    def is_commit(self) -> bool:
        """Whether the revision is a full commit hash, which names one content for ever."""
        return is_commit(self.revision)


def is_commit(text: str) -> bool:
    """Whether ``text`` is a full commit hash: 40 lower-case hex digits."""
    return _COMMIT.fullmatch(text) is not None


def parse_reference(
    model: str, revision: str | None = None, *, legacy_ids: bool = False
) -> LocalReference | HubReference:
    """Tell a path from a repo id, refusing everything else.

    Args:
        model: ``org/name`` or an absolute path.
        revision: hub only; ``None`` is the default branch, ``main``.
        legacy_ids: also accept hub ids without an organisation (``gpt2``).

    Raises:
        SourceError: ``invalid_request``.
    """
    _refuse_unprintable(model, "model", MAX_REFERENCE_CHARACTERS)
    if model.startswith("/"):
        if revision is not None:
            raise _invalid("'revision' goes with a hub repo id only; a directory has no revisions.")
        return LocalReference(_path_parts(model))
    if "://" in model:
        raise _invalid("'model' is a hub repo id (org/name) or an absolute path, never a URL.")
    is_repo_id = _REPO_ID.fullmatch(model) or (legacy_ids and _LEGACY_REPO_ID.fullmatch(model))
    if not is_repo_id or len(model) > 96 or "--" in model or ".." in model or model.endswith(".git"):
        raise _invalid("'model' must be a hub repo id (org/name) or an absolute path below a model root.")
    return HubReference(model, _checked_revision(revision))


def _checked_revision(revision: str | None) -> str:
    if revision is None:
        return "main"
    _refuse_unprintable(revision, "revision", MAX_REVISION_CHARACTERS)
    if not _REVISION.fullmatch(revision) or ".." in revision or revision.endswith((".lock", ".")):
        raise _invalid("'revision' must be the name of a branch or tag, or a commit hash.")
    return revision


def _path_parts(path: str) -> tuple[str, ...]:
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    if ".." in parts:
        raise _invalid("'model' must not contain '..'; give the directory's own absolute path.")
    if len(parts) > MAX_PATH_COMPONENTS or any(len(part.encode()) > MAX_COMPONENT_BYTES for part in parts):
        raise _invalid("'model' is too long for a path.")
    return parts


def _refuse_unprintable(text: str, field: str, max_characters: int) -> None:
    if not text:
        raise _invalid(f"'{field}' must not be empty.")
    if len(text) > max_characters:
        raise _invalid(f"'{field}' is longer than {max_characters} characters.")
    # Control characters, lone surrogates, and separators that would break a log line.
    if any(unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") for character in text):
        raise _invalid(f"'{field}' contains control characters.")


def _invalid(detail: str) -> SourceError:
    return SourceError("invalid_request", detail)
