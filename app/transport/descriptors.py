"""Passing file descriptors over a unix socket (``SCM_RIGHTS``)."""

from __future__ import annotations

import array
import os
import socket

MAX_DESCRIPTORS = 2
_ITEM_BYTES = array.array("i").itemsize
ANCILLARY_BYTES = socket.CMSG_SPACE(MAX_DESCRIPTORS * _ITEM_BYTES)

Ancillary = list[tuple[int, int, bytes]]


def descriptors_in(ancillary: Ancillary) -> list[int]:
    """The descriptors that ``recvmsg`` returned; they belong to the caller from now on."""
    found: list[int] = []
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            whole = len(data) - len(data) % _ITEM_BYTES
            numbers = array.array("i")
            numbers.frombytes(data[:whole])
            found.extend(numbers)
    return found


def ancillary_for(descriptors: list[int]) -> list[tuple[int, int, bytes]]:
    """What ``sendmsg`` takes to pass ``descriptors``."""
    if not descriptors:
        return []
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors).tobytes())]


def close_all(descriptors: list[int]) -> None:
    """Closes descriptors, those already closed included."""
    for fd in descriptors:
        try:
            os.close(fd)
        except OSError:
            continue
