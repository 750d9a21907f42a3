import subprocess
import sys
import time
from pathlib import Path

import pytest

from app.transport.control_page import ControlPageReader, ControlPageWriter, control_byte_size
from app.transport.memfd import SealedMemory, map_read_only

ROOT = Path(__file__).parents[2]
EPOCH = "0123456789abcdef" * 2


@pytest.fixture
def page():
    sealed = SealedMemory("control", control_byte_size(8))
    yield sealed
    sealed.close()


def reader_of(page):
    return ControlPageReader(map_read_only(page.read_only_fd, page.byte_size))


def test_readers_see_what_was_stored(page):
    writer = ControlPageWriter(memoryview(page.buffer), epoch=EPOCH, slots=8)
    reader = reader_of(page)
    writer.set_sequence(7, 2**63 + 1)
    writer.set_step(7, step=2**40, rows=12)
    assert (reader.epoch, reader.slots) == (EPOCH, 8)
    assert (reader.sequence(7), reader.step(7), reader.rows(7)) == (2**63 + 1, 2**40, 12)
    assert (reader.sequence(6), reader.step(6), reader.rows(6)) == (0, 0, 0)


def test_a_page_without_its_magic_is_refused(page):
    with pytest.raises(ValueError, match="not a control page"):
        reader_of(page)


@pytest.mark.parametrize(("word", "value"), [(0, 1), (1, 2), (5, 32)])
def test_other_versions_are_refused(page, word, value):
    ControlPageWriter(memoryview(page.buffer), epoch=EPOCH, slots=8)
    memoryview(page.buffer).cast("Q")[word] = value
    with pytest.raises(ValueError, match="not a control page"):
        reader_of(page)


def test_a_page_shorter_than_its_slots_is_refused(page):
    ControlPageWriter(memoryview(page.buffer), epoch=EPOCH, slots=8)
    memoryview(page.buffer).cast("Q")[4] = 2**60
    with pytest.raises(ValueError, match="shorter"):
        reader_of(page)
    with pytest.raises(ValueError, match="too short"):
        ControlPageReader(memoryview(bytes(8)))


WATCH = """
import sys
from app.transport.control_page import ControlPageReader
from app.transport.memfd import map_read_only
reader = ControlPageReader(map_read_only(int(sys.argv[1]), int(sys.argv[2])))
print("watching", flush=True)
reads, changes, last = 0, 0, None
while True:
    value = reader.sequence(3)
    if value == 2**64 - 1:
        break
    high, low = value >> 32, value & 0xFFFFFFFF
    if high != low:
        raise SystemExit(f"torn: {value:#x}")
    reads, changes, last = reads + 1, changes + (value != last), value
print(reads, changes, flush=True)
"""


def test_words_do_not_tear_between_processes(page):
    writer = ControlPageWriter(memoryview(page.buffer), epoch=EPOCH, slots=8)
    watcher = subprocess.Popen(
        [sys.executable, "-c", WATCH, str(page.read_only_fd), str(page.byte_size)],
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=[page.read_only_fd],
        cwd=ROOT,
    )
    with watcher:
        assert watcher.stdout.readline() == "watching\n"
        until = time.monotonic() + 1.0
        count = 0
        while time.monotonic() < until:
            for _ in range(1000):
                count += 1
                writer.set_sequence(3, (count << 32 | count) & 0xFFFFFFFE_FFFFFFFE)
        writer.set_sequence(3, 2**64 - 1)
        reads, changes = map(int, watcher.stdout.readline().split())
    assert watcher.returncode == 0
    assert changes > 10
    assert reads >= changes
