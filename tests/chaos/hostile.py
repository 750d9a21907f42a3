"""Clients of the worker's socket that behave as no client should."""

from __future__ import annotations

import array
import contextlib
import os
import random
import socket
import struct

from app.transport import messages as wire
from app.transport.frames import frame

HELLO = frame(wire.encode(wire.Hello(id=1, protocol_version=1)))


@contextlib.contextmanager
def connected(path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(2)
        sock.connect(str(path))
        yield sock


def half_a_frame(path, random_: random.Random) -> None:
    with connected(path) as sock:
        sock.sendall(HELLO[: random_.randrange(1, len(HELLO))])


def garbage(path, random_: random.Random) -> None:
    with connected(path) as sock:
        body = random_.randbytes(random_.randint(1, 300))
        sock.sendall(HELLO + struct.pack("<I", len(body)) + body)
        sock.recv(65536)


def an_endless_frame(path, random_: random.Random) -> None:
    with connected(path) as sock:
        sock.sendall(struct.pack("<I", random_.randint(17 << 20, 2**32 - 1)) + b"x" * 1000)
        with contextlib.suppress(OSError):
            sock.recv(65536)


def deep_nesting(path, random_: random.Random) -> None:
    with connected(path) as sock:
        body = b"\x91" * random_.randint(1000, 100_000) + b"\xc0"
        sock.sendall(HELLO + struct.pack("<I", len(body)) + body)
        sock.recv(65536)


def never_reads(path, random_: random.Random) -> None:
    """Asks a thousand times and looks at no answer."""
    stats = b"".join(frame(wire.encode(wire.Stats(id=i))) for i in range(2, 1002))
    with connected(path) as sock:
        sock.settimeout(0.2)
        with contextlib.suppress(TimeoutError, OSError):
            for _ in range(random_.randint(1, 20)):
                sock.sendall(HELLO + stats)


def goes_away_while_it_waits(path, random_: random.Random) -> None:
    with connected(path) as sock:
        prompts = [[1] * random_.randint(1, 300) for _ in range(random_.randint(1, 8))]
        sock.sendall(HELLO + frame(wire.encode(wire.Forward(id=2, prompt_token_ids=prompts))))
        if random_.random() < 0.5:
            sock.shutdown(socket.SHUT_WR)


def sends_descriptors(path, _random: random.Random) -> None:
    with connected(path) as sock:
        reading, writing = os.pipe()
        fds = array.array("i", [reading, writing])
        sock.sendmsg([HELLO], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
        os.close(reading)
        os.close(writing)
        with contextlib.suppress(OSError):
            sock.recv(65536)


def many_connections(path, random_: random.Random) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(random_.randint(10, 60)):
            stack.enter_context(connected(path)).sendall(HELLO)


ALL = (
    half_a_frame, garbage, an_endless_frame, deep_nesting, never_reads, goes_away_while_it_waits, sends_descriptors,
    many_connections,
)  # fmt: skip
