"""Sealed anonymous memory (``memfd_create``): the worker writes, readers map and can do nothing else.

A memfd has no name to guess or hijack and leaves nothing behind when its last holder dies. Seals (``man 2 fcntl``):
the size can never change, so a reader is safe from SIGBUS; ``F_SEAL_FUTURE_WRITE`` refuses every new writable shared
mapping and every ``write``, while the mapping that the worker made before stays writable.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import weakref

# From linux/fcntl.h: Python 3.11 lacks the last one, and readers import this file on systems that lack them all.
F_ADD_SEALS, F_GET_SEALS = 1033, 1034
F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_FUTURE_WRITE = 0x01, 0x02, 0x04, 0x10
_SEALS = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_MAP_FAILED = ctypes.c_void_p(-1).value


class SealedMemory:
    """The exporter's side: ``byte_size`` bytes, writable here through ``buffer``, read-only for everybody else.

    Attributes:
        buffer: the shared writable mapping.
        read_only_fd: the descriptor to pass to readers; opened read-only, so not even ``ftruncate`` is left to try.

    Raises:
        MemoryError: the pages cannot be had now. They are taken at once, for a page that is missing later would end
            the process with SIGBUS in the middle of a step.
    """

    def __init__(self, name: str, byte_size: int) -> None:
        fd = os.memfd_create(f"draftport-{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            try:
                os.ftruncate(fd, byte_size)
                os.posix_fallocate(fd, 0, byte_size)
            except OSError as error:
                raise MemoryError(
                    f"cannot get {byte_size} bytes of shared memory for the {name}: {error.strerror}"
                ) from error
            self.buffer = mmap.mmap(fd, byte_size)  # before the seal, which allows no later writable mapping
            fcntl.fcntl(fd, F_ADD_SEALS, _SEALS)
            self.read_only_fd = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            os.close(fd)
        self.byte_size = byte_size

    def close(self) -> None:
        """Closes the descriptor; the mapping goes when its last view does."""
        os.close(self.read_only_fd)


def check_sealed(fd: int, byte_size: int) -> None:
    """Makes sure that a received descriptor is a memfd that can neither shrink nor be written by this process.

    Raises:
        ValueError: it is not, or holds fewer than ``byte_size`` bytes; mapping it could end this process by SIGBUS.
    """
    try:
        seals = fcntl.fcntl(fd, F_GET_SEALS)
    except OSError as error:
        raise ValueError("the descriptor is no sealed memory") from error
    if not seals & F_SEAL_SHRINK:
        raise ValueError("the descriptor's memory may still shrink")
    if os.fstat(fd).st_size < byte_size:
        raise ValueError("the descriptor's memory is shorter than announced")


def map_read_only(fd: int, byte_size: int) -> memoryview:
    """Maps the first ``byte_size`` bytes shared and read-only; unmapped with the last view of them."""
    view = _mapped(fd, 0, byte_size, mmap.PROT_READ, mmap.MAP_SHARED)
    return memoryview(view).cast("B").toreadonly()


def map_private(fd: int, byte_offset: int, byte_size: int) -> ctypes.Array[ctypes.c_ubyte]:
    """Maps a range copy-on-write and returns it as a buffer that unmaps itself with its last view.

    An in-place operation on a tensor over it changes this process's private page, never the slab: PyTorch has no
    read-only tensors, and on a read-only mapping such a slip would end the process with SIGSEGV.
    """
    return _mapped(fd, byte_offset, byte_size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE)


def _mapped(fd: int, byte_offset: int, byte_size: int, prot: int, flags: int) -> ctypes.Array[ctypes.c_ubyte]:
    """Maps without Python's ``mmap``, which keeps a descriptor for each mapping: thousands of live tensors could not."""
    start = byte_offset // mmap.PAGESIZE * mmap.PAGESIZE
    lead = byte_offset - start
    length = max(lead + byte_size, 1)
    address = _libc.mmap(None, length, prot, flags, fd, start)
    if address == _MAP_FAILED or address is None:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    view = (ctypes.c_ubyte * byte_size).from_address(address + lead)
    weakref.finalize(view, _libc.munmap, address, length).atexit = False
    return view
