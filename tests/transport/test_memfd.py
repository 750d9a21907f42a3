import errno
import fcntl
import mmap
import os
import resource
import subprocess
import sys

import pytest

from app.transport.memfd import SealedMemory, check_sealed, map_private, map_read_only


@pytest.fixture
def memory():
    sealed = SealedMemory("test", 2 << 20)
    yield sealed
    sealed.close()


def refused(action, *numbers):
    with pytest.raises(OSError) as caught:  # noqa: PT011 - the number is asserted
        action()
    assert caught.value.errno in numbers


def test_readers_see_what_the_worker_writes(memory):
    shared = map_read_only(memory.read_only_fd, memory.byte_size)
    memory.buffer[1_000_000:1_000_005] = b"hello"
    assert shared[1_000_000:1_000_005] == b"hello"
    with pytest.raises(TypeError, match="read-only"):
        shared[0] = 1


def test_a_reader_can_neither_write_nor_resize(memory):
    fd = memory.read_only_fd
    refused(lambda: os.write(fd, b"x"), errno.EBADF, errno.EPERM)
    refused(lambda: os.ftruncate(fd, 0), errno.EINVAL, errno.EBADF, errno.EPERM)
    refused(lambda: mmap.mmap(fd, 4096), errno.EACCES, errno.EPERM)
    refused(lambda: fcntl.fcntl(fd, 1033, 0), errno.EPERM)


def test_not_even_through_a_descriptor_reopened_for_writing(memory):
    try:
        fd = os.open(f"/proc/self/fd/{memory.read_only_fd}", os.O_RDWR)
    except PermissionError:
        return  # better still
    try:
        refused(lambda: os.write(fd, b"x"), errno.EPERM)
        refused(lambda: os.ftruncate(fd, 0), errno.EPERM)
        refused(lambda: os.ftruncate(fd, 4 << 20), errno.EPERM)
        refused(lambda: mmap.mmap(fd, 4096), errno.EPERM)
        refused(lambda: os.posix_fallocate(fd, 0, 4 << 20), errno.EPERM)
    finally:
        os.close(fd)
    assert memory.buffer[:1] == b"\0"


def test_another_process_is_refused_too(memory):
    script = f"""
import mmap, os
for flags in (os.O_RDONLY, os.O_RDWR):
    try:
        fd = os.open("/proc/self/fd/{memory.read_only_fd}", flags)
        mmap.mmap(fd, 4096)
    except PermissionError:
        continue
    raise SystemExit("writable")
"""
    done = subprocess.run([sys.executable, "-c", script], pass_fds=[memory.read_only_fd], check=False)
    assert done.returncode == 0


def test_private_mappings_keep_their_writes_to_themselves(memory):
    memory.buffer[5000:5003] = b"abc"
    one = map_private(memory.read_only_fd, 5000, 3)
    two = map_private(memory.read_only_fd, 5000, 3)
    one[0] = ord("X")
    assert bytes(one) == b"Xbc"
    assert bytes(two) == b"abc"
    assert memory.buffer[5000:5003] == b"abc"


def mappings():
    with open("/proc/self/maps") as lines:  # noqa: PTH123 - a path object adds nothing here
        return sum("draftport-test" in line for line in lines)


def test_private_mappings_go_with_their_last_view_and_take_no_descriptor(memory, descriptors):
    open_before, mapped_before = descriptors(), mappings()  # the first one collects garbage
    views = [memoryview(map_private(memory.read_only_fd, i, 100)) for i in range(2000)]
    assert descriptors() == open_before
    assert mappings() > mapped_before
    assert views[7][:5] == bytes(5)
    views.clear()
    assert mappings() == mapped_before


def test_a_mapping_outlives_its_descriptor():
    sealed = SealedMemory("test", 4096)
    sealed.buffer[:2] = b"ok"
    view = map_private(sealed.read_only_fd, 0, 2)
    sealed.close()
    assert bytes(view) == b"ok"


def test_nothing_is_mapped_for_a_bad_descriptor():
    refused(lambda: map_private(-1, 0, 10), errno.EBADF)


def test_pages_that_cannot_be_had_are_an_error_now_and_not_a_crash_later(descriptors):
    before = descriptors()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(MemoryError, match="2097152 bytes of shared memory for the slab"):
            SealedMemory("slab", 2 << 20)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert descriptors() == before


def test_check_sealed(memory, tmp_path):
    check_sealed(memory.read_only_fd, memory.byte_size)
    with pytest.raises(ValueError, match="shorter"):
        check_sealed(memory.read_only_fd, memory.byte_size + 1)
    plain = os.memfd_create("test-plain", os.MFD_ALLOW_SEALING)
    file = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    try:
        with pytest.raises(ValueError, match="may still shrink"):
            check_sealed(plain, 0)
        with pytest.raises(ValueError, match="no sealed memory"):
            check_sealed(file, 0)
    finally:
        os.close(plain)
        os.close(file)
