"""The hub cache on disk, in huggingface_hub's documented layout, read and written.

``models--org--name/{refs/<branch>, blobs/<etag>, snapshots/<commit>/<file> -> ../../blobs/<etag>, .no_exist/...}``. It
is written here, and not by ``hf_hub_download``, because that retries and waits without a bound on the whole, however
slowly a server sends.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Final

from msgspec import Struct

from .beneath import DirectoryBeneath, EscapesRootError, FileTooLargeError, NotAFileError
from .reference import is_commit

# Both kinds of the hub's own tags are hex; mirrors use others. Anything odd is not made into a file name.
_BLOB_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")


class CachedFile(Struct, frozen=True):
    """A file of one commit.

    Attributes:
        name: its name in the repo.
        content: its bytes, ``None`` when the commit holds no such file.
        etag: the hub's name for the bytes; without one they are not kept.
    """

    name: str
    content: bytes | None
    etag: str | None


class HubCache:
    """One hub cache. Every call blocks on the file system; nothing fails for want of a writable disk."""

    def __init__(self, cache_dir: Path) -> None:
        self._cache_dir = cache_dir

    def has_repo(self, repo_id: str) -> bool:
        """Whether anything of the repo is here."""
        return self._folder(repo_id).is_dir()

    def commit_of(self, repo_id: str, revision: str) -> str | None:
        """The commit that a revision named when it was last asked for, if its snapshot is here."""
        commit = revision if is_commit(revision) else self._ref(repo_id, revision)
        if commit is None or not (self._folder(repo_id) / "snapshots" / commit).is_dir():
            return None
        return commit

    def read(self, repo_id: str, commit: str, name: str, max_bytes: int) -> bytes | None:
        """A cached file's bytes, ``None`` where it is not cached, unreadable or too large.

        The cache as a whole is the boundary, since large blobs may be shared between repos.
        """
        parts = (self._folder(repo_id).name, "snapshots", commit)
        try:
            with DirectoryBeneath(self._cache_dir, parts) as snapshot:
                return snapshot.read(name, max_bytes)
        except (OSError, EscapesRootError, NotAFileError, FileTooLargeError):
            return None

    def is_absent(self, repo_id: str, commit: str, name: str) -> bool:
        """Whether the hub has said that this commit holds no such file."""
        return (self._folder(repo_id) / ".no_exist" / commit / name).is_file()

    def keep(self, repo_id: str, commit: str, file: CachedFile) -> None:
        """Keep a file, or that the commit holds none; best effort."""
        folder = self._folder(repo_id)
        try:
            if file.content is None:
                _touch(folder / ".no_exist" / commit / file.name)
            elif file.etag is not None and _BLOB_NAME.fullmatch(file.etag):
                blob = folder / "blobs" / file.etag
                _store(blob, folder / "snapshots" / commit / file.name, file.content)
        except OSError:
            return

    def store_ref(self, repo_id: str, revision: str, commit: str) -> None:
        """Keep what a branch or tag names now; best effort."""
        if revision == commit or self._ref(repo_id, revision) == commit:
            return
        ref = self._folder(repo_id) / "refs" / revision
        try:
            ref.parent.mkdir(parents=True, exist_ok=True)
            _write_whole(ref, commit.encode())
        except OSError:
            return

    def _folder(self, repo_id: str) -> Path:
        return self._cache_dir / ("models--" + repo_id.replace("/", "--"))

    def _ref(self, repo_id: str, revision: str) -> str | None:
        parts = (self._folder(repo_id).name, "refs", *revision.split("/"))
        try:
            with DirectoryBeneath(self._cache_dir, parts[:-1]) as refs:
                commit = refs.read(parts[-1], 256).decode("ascii", "replace").strip()
        except (OSError, EscapesRootError, NotAFileError, FileTooLargeError):
            return None
        return commit if is_commit(commit) else None


def _touch(mark: Path) -> None:
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()


def _store(blob: Path, pointer: Path, content: bytes) -> None:
    blob.parent.mkdir(parents=True, exist_ok=True)
    pointer.parent.mkdir(parents=True, exist_ok=True)
    # Another length under the same tag is the rest of a crash.
    if not blob.exists() or blob.stat().st_size != len(content):
        _write_whole(blob, content)
    if not pointer.exists():
        _point(pointer, blob, content)


def _write_whole(path: Path, content: bytes) -> None:
    """Readers see the old file or the new one, never half of it."""
    descriptor, temporary = tempfile.mkstemp(prefix=path.name + ".", suffix=".incomplete", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            # mkstemp's 0600 would lock out the other tools that share this cache.
            os.fchmod(file.fileno(), 0o666 & ~_umask(path.parent))
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask(directory: Path) -> int:
    """What the directory's own mode withholds: reading the real umask would change it for other threads."""
    return ~directory.stat().st_mode & 0o666


def _point(pointer: Path, blob: Path, content: bytes) -> None:
    try:
        pointer.symlink_to(os.path.relpath(blob, pointer.parent))
    except FileExistsError:
        return
    except OSError:
        # No symbolic links on this file system: the layout allows a copy instead.
        _write_whole(pointer, content)
