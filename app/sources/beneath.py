"""Opening files below a directory such that no symlink, rename or race leads out of it.

The path is walked one component at a time on directory descriptors, and links are resolved here instead of by the
kernel. ``..`` goes back to the descriptor we came from, never to what the directory's parent has become meanwhile. It
is what ``openat2(RESOLVE_BENEATH)`` does, which Python does not offer, except that absolute links into the same root
are followed too.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Self

MAX_LINKS: Final = 40
MAX_OPEN_DESCRIPTORS: Final = 96
_READ_CHUNK_BYTES: Final = 1 << 20
# O_PATH needs search permission only, blocks on nothing and wakes no device.
_LOOK: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class EscapesRootError(Exception):
    """The path leads out of its root."""


class NotAFileError(Exception):
    """The path names a directory, FIFO, socket or device."""


class FileTooLargeError(Exception):
    """The file has more bytes than allowed."""


class DirectoryBeneath:
    """A directory below ``root``, held open, whose files can be read. A context manager.

    Args:
        root: an existing directory; links in its own path are followed, since whoever configured it vouches for it.
        parts: components below it; empty for the root itself.

    Raises:
        EscapesRootError: a link leads out of the root.
        OSError: the path does not exist, is no directory, loops, or may not be searched.
    """

    def __init__(self, root: Path, parts: Iterable[str]) -> None:
        self._root = root
        self._descriptors: list[int] = []
        try:
            self._chain = [self._opened(str(root), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, None)]
            self._chain, file_name = self._walk(self._chain, parts)
            _refuse_what_follows(file_name)
        except BaseException:
            self.close()
            raise

    def stamp(self, name: str) -> tuple[int, int, int, int] | None:
        """Device, inode, size and modification time of a file here, ``None`` where there is none that can be read."""
        try:
            with self._located(name) as (directory, file_name):
                status = os.stat(file_name, dir_fd=directory, follow_symlinks=False)
        except (OSError, EscapesRootError, NotAFileError):
            return None
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns

    def read(self, name: str, max_bytes: int) -> bytes:
        """The content of a regular file here.

        Raises:
            EscapesRootError: the file is a link that leads out of the root.
            NotAFileError: it is not a regular file.
            FileTooLargeError: it holds more than ``max_bytes``.
            OSError: it does not exist or may not be read.
        """
        with self._located(name) as (directory, file_name):
            descriptor = os.open(file_name, _READ, dir_fd=directory)
        try:
            # Checked on what was opened: the name may mean something else by now.
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise NotAFileError
            if status.st_size > max_bytes:
                raise FileTooLargeError
            return _read_up_to(descriptor, max_bytes)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Close every descriptor."""
        self._close_down_to(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def _located(self, name: str) -> Iterator[tuple[int, str]]:
        """The directory that a file really lies in, and its name there; the way to it is closed again afterwards."""
        before = len(self._descriptors)
        try:
            chain, file_name = self._walk(self._chain, (name,))
            if file_name is None:
                raise NotAFileError
            yield chain[-1], file_name
        finally:
            self._close_down_to(before)

    def _close_down_to(self, count: int) -> None:
        while len(self._descriptors) > count:
            os.close(self._descriptors.pop())

    def _walk(self, start: list[int], parts: Iterable[str]) -> tuple[list[int], str | None]:
        """Follow ``parts`` from the last of ``start``; also the name of the file that it ends at, if it does."""
        chain = list(start)
        pending = deque(parts)
        links = 0
        while pending:
            name = pending.popleft()
            if name == "..":
                chain.pop()
                if not chain:
                    raise EscapesRootError
                continue
            descriptor = self._opened(name, _LOOK, chain[-1])
            mode = os.fstat(descriptor).st_mode
            if stat.S_ISLNK(mode):
                links += 1
                if links > MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                # An empty name means the descriptor itself, so the link that was opened is the link that is read.
                target = os.readlink("", dir_fd=descriptor)
                if target.startswith("/"):
                    chain = self._chain[:1]
                pending.extendleft(reversed(self._link_parts(target)))
            elif stat.S_ISDIR(mode):
                chain.append(descriptor)
            else:
                _refuse_what_follows(*pending)
                if not stat.S_ISREG(mode):
                    raise NotAFileError
                return chain, name
        return chain, None

    def _link_parts(self, target: str) -> list[str]:
        parts = [part for part in target.split("/") if part not in ("", ".")]
        if not target.startswith("/"):
            return parts
        for spelling in (self._root, Path(os.path.realpath(self._root))):
            prefix = list(spelling.parts[1:])
            if parts[: len(prefix)] == prefix:
                return parts[len(prefix) :]
        raise EscapesRootError

    def _opened(self, name: str, flags: int, directory: int | None) -> int:
        if len(self._descriptors) >= MAX_OPEN_DESCRIPTORS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        descriptor = os.open(name, flags, dir_fd=directory)
        self._descriptors.append(descriptor)
        return descriptor


def _refuse_what_follows(*names: str | None) -> None:
    """Nothing lies below a file."""
    if any(names):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))


def _read_up_to(descriptor: int, max_bytes: int) -> bytes:
    """Read to the end; the size seen before is only a hint, since somebody may be appending."""
    chunks: list[bytes] = []
    left = max_bytes + 1
    while left > 0:
        chunk = os.read(descriptor, min(left, _READ_CHUNK_BYTES))
        if not chunk:
            return b"".join(chunks)
        chunks.append(chunk)
        left -= len(chunk)
    raise FileTooLargeError
