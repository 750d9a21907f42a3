"""The worker's unix socket in the file system: private, never on top of a live worker, gone after the end."""

from __future__ import annotations

import contextlib
import fcntl
import grp
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from .exporter_error import ExporterError

PROBE_TIMEOUT_S: Final = 1.0
BACKLOG: Final = 1024
_PRIVATE_DIRECTORY, _SHARED_DIRECTORY = 0o700, 0o2750
_PRIVATE_SOCKET, _SHARED_SOCKET = 0o600, 0o660


def bind(path: Path, group: str | None) -> socket.socket:
    """The listening socket, with directory and modes as the contract says; an existing directory keeps its mode.

    Raises:
        ExporterError: ``socket_unusable``: somebody else's directory, a live worker, or what the system refuses.
    """
    try:
        gid = None if group is None else _group_id(group)
        _make_directory(path.parent, gid)
        with _locked(path.parent):
            _remove_stale(path)
            return _bind(path, gid)
    except (OSError, ValueError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ExporterError(
            "socket_unusable", f"The worker's socket cannot be made ({reason}); set RUNTIME_DIR."
        ) from error


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Keeps other workers from looking for a stale socket, and removing it, while this one makes its own."""
    lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def unlink(path: Path, inode: int) -> None:
    """Removes the socket file, unless another worker has put its own there since."""
    with contextlib.suppress(OSError):
        if path.stat().st_ino == inode:
            path.unlink()


def _group_id(group: str) -> int:
    if group.isdigit():
        return int(group)
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise ExporterError(
            "socket_unusable", f"There is no group {group!r:.40}; set SOCKET_GROUP."
        ) from None


def _make_directory(directory: Path, gid: int | None) -> None:
    try:
        directory.mkdir(mode=_PRIVATE_DIRECTORY, parents=True)
    except FileExistsError:
        _check_directory(directory)
        return
    if gid is not None:
        os.chown(directory, -1, gid)
        directory.chmod(_SHARED_DIRECTORY)


def _check_directory(directory: Path) -> None:
    """A directory that another user owns or may write to could swap the socket for his own."""
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise ExporterError("socket_unusable", "RUNTIME_DIR is no directory, or a link; set another one.")
    if found.st_uid not in (os.getuid(), 0):
        raise ExporterError("socket_unusable", "RUNTIME_DIR belongs to another user; set another one.")
    if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        raise ExporterError("socket_unusable", "Everybody may write to RUNTIME_DIR; set a private one.")


def _remove_stale(path: Path) -> None:
    if not path.is_socket():
        if path.exists():
            raise ExporterError("socket_unusable", "worker.sock in RUNTIME_DIR is no socket; remove it.")
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(PROBE_TIMEOUT_S)
        try:
            probe.connect(str(path))
        except TimeoutError:
            pass  # somebody listens and is too busy to accept
        except OSError:
            path.unlink(missing_ok=True)
            return
    raise ExporterError("socket_unusable", "Another worker is alive on this socket; set another RUNTIME_DIR.")


def _bind(path: Path, gid: int | None) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        old = os.umask(0o177)
        try:
            sock.bind(str(path))
        finally:
            os.umask(old)
        if gid is not None:
            os.chown(path, -1, gid)
        path.chmod(_PRIVATE_SOCKET if gid is None else _SHARED_SOCKET)
        sock.listen(BACKLOG)  # before the lock is gone: a bound socket that nobody listens on looks stale
    except BaseException:
        sock.close()
        raise
    return sock
