"""A worker's slab, mapped into this process."""

from __future__ import annotations

import operator
import os
import socket
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

from ..transport import messages as wire
from ..transport.control_page import ControlPageReader
from ..transport.description import Description, description_of
from ..transport.errors import (
    ConnectionLostError,
    FrameError,
    RemoteError,
    StaleLeaseError,
    UnsupportedTransportError,
)
from ..transport.memfd import map_read_only
from ..transport.region import RegionDescriptor
from ..transport.socket_path import default_socket_path
from .connection import Connection
from .deadline import Deadline
from .lease import Lease
from .mapping import Mapping, mapping_of
from .steps import StepStream

_RETRY_S = 0.05


class Region:
    """The slab of one worker, through one connection, which holds every lease taken here.

    Make one with ``attach``. All methods may be called from several threads. After ``fork()`` a region is dead in the
    child; attach again there.

    Attributes:
        descriptor: how the slab lies.
        target: the model that the rows come from.
        timeout_s: how long calls other than ``forward`` wait for the worker.
        closed: whether ``close`` was called.
    """

    def __init__(
        self,
        connection: Connection,
        description: wire.DescribeReply,
        control_page: ControlPageReader,
        mapping: Mapping,
        timeout_s: float,
    ) -> None:
        self.connection = connection
        self.descriptor: RegionDescriptor = description.region
        self.target: wire.TargetDescription = description.target
        self.mapping = mapping
        self.timeout_s = timeout_s
        self.closed = False
        self.control_page = control_page

    @classmethod
    def attach(
        cls, path: str | os.PathLike[str] | None = None, *, timeout_s: float = 10.0, client_name: str = ""
    ) -> Region:
        """Connects to the worker's socket and maps its slab, waiting for a worker that is still loading.

        Without a ``path`` the socket is looked for where the service puts it: below ``$DRAFTPORT_RUNTIME_DIR``, else
        below ``$XDG_RUNTIME_DIR/draftport`` or the per-user directory.

        Raises:
            ConnectionLostError: nobody listened at ``path`` for ``timeout_s`` seconds, or the worker hung up.
            RemoteError: the worker cannot serve (``worker_unavailable`` with the reason), now or for ``timeout_s``.
            UnsupportedTransportError: this system or process cannot map that slab.
            TimeoutError: the worker did not answer.
        """
        if sys.platform != "linux":
            raise UnsupportedTransportError("slabs are shared on Linux only; use the REST interface here")
        deadline = Deadline(timeout_s)
        connection = Connection(_connected(path if path is not None else default_socket_path(), deadline))
        try:
            hello = wire.Hello(id=0, protocol_version=wire.PROTOCOL_VERSION, client_name=client_name)
            connection.call(hello, wire.HelloReply, deadline)
            with _described(connection, deadline) as description:
                connection.refuse_descriptors()
                page = _control_page(description)
                mapping = mapping_of(description.reply.region, description.slab_fd)
            return cls(connection, description.reply, page, mapping, timeout_s)
        except ValueError as error:
            connection.close()
            raise UnsupportedTransportError(f"the worker's region cannot be mapped: {error}") from error
        except BaseException:
            connection.close()
            raise

    def forward(
        self,
        prompt_token_ids: Iterable[Iterable[int]] | None = None,
        *,
        prompts: Sequence[str] | None = None,
        lease_ttl_s: float = 30.0,
        timeout_s: float | None = None,
    ) -> list[Lease]:
        """Runs prompts through the target and leases their rows, all or none, in the prompts' order.

        Args:
            prompt_token_ids: one iterable of token ids (a list, an array, a tensor) per prompt.
            prompts: texts instead, where the target has a tokenizer.
            lease_ttl_s: seconds until the leases run out unless renewed, 1 to 600.
            timeout_s: give up after that many seconds; the worker is told.

        Raises:
            RemoteError: with the contract's codes (``slab_full``, ``prompt_too_long``, ``overloaded``, ...).
            TimeoutError: no rows within ``timeout_s``.
            ConnectionLostError: the worker is gone, or this region closed.
        """
        if (prompt_token_ids is None) == (prompts is None):
            raise TypeError("forward takes token ids or texts, exactly one of them")
        request = wire.Forward(
            id=0,
            prompt_token_ids=None if prompt_token_ids is None else [_ids_of(p) for p in prompt_token_ids],
            prompts=None if prompts is None else list(prompts),
            lease_ttl_s=lease_ttl_s,
            deadline_s=timeout_s,
        )
        asked = len(request.prompt_token_ids or request.prompts or ())
        sent_at = time.monotonic()
        reply = self.connection.call(request, wire.ForwardReply, Deadline(timeout_s))
        if reply.epoch != self.descriptor.epoch or len(reply.leases) != asked:
            self.connection.release(reply.leases)
            raise FrameError("the worker's leases do not answer the prompts")
        try:
            return [self.adopt(lease, sent_at) for lease in reply.leases]
        except FrameError:
            self.connection.release(reply.leases)
            raise

    def open(
        self,
        lease: wire.LeaseDescriptor | dict[str, Any] | str | bytes,
        *,
        lease_ttl_s: float = 30.0,
    ) -> Lease:
        """Becomes a holder of a lease that somebody else took: over REST, or in another process.

        Args:
            lease: one element of the REST answer's ``leases`` (a dict, or its JSON text), a descriptor, or an id.
            lease_ttl_s: seconds until this hold runs out, 1 to 600; the other holders' deadlines stay theirs.

        Raises:
            ValueError: ``lease`` is none of these, or its numbers do not lie in this region.
            StaleLeaseError: it describes other rows than the worker's lease of that id.
            RemoteError: ``lease_not_found`` or ``lease_expired``.
        """
        given = _descriptor_of(lease)
        if isinstance(given, wire.LeaseDescriptor):
            self._check(given)
        lease_id = given if isinstance(given, str) else given.lease_id
        request = wire.Hold(id=0, lease_id=lease_id, lease_ttl_s=lease_ttl_s)
        sent_at = time.monotonic()
        reply = self.connection.call(request, wire.LeaseReply, Deadline(self.timeout_s))
        if isinstance(given, wire.LeaseDescriptor) and _place(given) != _place(reply.lease):
            self.connection.release([reply.lease])
            raise StaleLeaseError("the lease's description is not that of the worker's lease of this id")
        return self.adopt(reply.lease, sent_at)

    def steps(self, *, lease_ttl_s: float = 30.0, timeout_s: float | None = None) -> StepStream:
        """Follows every step that the worker publishes from now on, latest wins: ``for step in region.steps()``.

        Args:
            lease_ttl_s: how long a step's leases run at most, 1 to 600 seconds.
            timeout_s: the longest wait for a next step; ``TimeoutError`` then.
        """
        return StepStream(self, lease_ttl_s, timeout_s)

    def close(self) -> None:
        """Closes the connection, which ends all leases; tensors stay valid memory, only new ones are refused."""
        if self.closed or self.connection.is_forked():
            return
        self.closed = True
        self.connection.close()
        self.mapping.close()

    def why_unusable(self) -> str | None:
        """``None`` while the worker's socket is open, else a sentence that says what happened."""
        return self.connection.why_unusable()

    def adopt(self, descriptor: wire.LeaseDescriptor, sent_at: float) -> Lease:
        """Makes a ``Lease`` of the worker's words; its time counts from ``sent_at`` (monotonic seconds).

        Raises:
            FrameError: the rows do not lie in this region.
        """
        try:
            self._check(descriptor)
        except ValueError as error:
            raise FrameError(f"the worker sent an impossible lease: {error}") from error
        return Lease(self, descriptor, sent_at + descriptor.expires_in_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        region = self.descriptor
        return f"<Region {region.kind} of {self.target.model}, {region.slots} slots, epoch {region.epoch}>"

    def _check(self, lease: wire.LeaseDescriptor) -> None:
        self.descriptor.check_rows(
            slot=lease.slot,
            byte_offset=lease.byte_offset,
            byte_size=lease.byte_size,
            num_tokens=lease.num_tokens,
        )
        if lease.dtype != self.descriptor.dtype or lease.shape != [lease.num_tokens, self.descriptor.width]:
            raise ValueError("the lease's shape or dtype is not the region's")


def _connected(path: str | os.PathLike[str], deadline: Deadline) -> socket.socket:
    """A socket connected to ``path``, waiting for somebody to listen there."""
    while True:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(deadline.left_s())
            sock.connect(os.fspath(path))
        except (
            FileNotFoundError,
            ConnectionRefusedError,
            BlockingIOError,
        ) as error:  # the last: a full backlog
            sock.close()
            _pause(deadline, ConnectionLostError(f"no worker listens on {Path(path)}: {error.strerror}"))
        except OSError as error:
            sock.close()
            raise ConnectionLostError(f"cannot connect to {Path(path)}: {error}") from error
        except BaseException:
            sock.close()
            raise
        else:
            return sock


def _described(connection: Connection, deadline: Deadline) -> Description:
    """The worker's description, waiting for a worker that is loading."""
    while True:
        try:
            reply = connection.call(wire.Describe(id=0), wire.DescribeReply, deadline)
        except RemoteError as error:
            if error.retry_after_s is None:
                raise
            _pause(deadline, error)
        else:
            return description_of(reply, connection.take_descriptors())


def _control_page(description: Description) -> ControlPageReader:
    region = description.reply.region
    page = ControlPageReader(map_read_only(description.control_fd, region.control_byte_size))
    if (page.epoch, page.slots) != (region.epoch, region.slots):
        raise ValueError("the control page belongs to another region")
    return page


def _pause(deadline: Deadline, why: Exception) -> None:
    """Waits a little, or raises ``why`` when there is no time left to try again."""
    try:
        left = deadline.left_s()
    except TimeoutError:
        left = 0.0
    if left is not None and left <= _RETRY_S:
        raise why
    time.sleep(_RETRY_S)


def _ids_of(prompt: Iterable[int]) -> list[int]:
    if isinstance(prompt, int | str):
        raise TypeError("prompt_token_ids is a list of prompts, each a list of ids; texts go into prompts=")
    values = prompt.tolist() if hasattr(prompt, "tolist") else prompt
    return [operator.index(value) for value in values]


def _descriptor_of(lease: object) -> wire.LeaseDescriptor | str:
    if isinstance(lease, wire.LeaseDescriptor):
        return lease
    if isinstance(lease, dict):
        if "leases" in lease:
            raise ValueError("open takes one lease: pass the elements of the answer's leases one by one")
        return msgspec.convert(lease, wire.LeaseDescriptor)
    if isinstance(lease, bytes) or (isinstance(lease, str) and lease.lstrip().startswith("{")):
        return _descriptor_of(msgspec.json.decode(lease, type=dict))
    if isinstance(lease, str):
        return lease
    raise ValueError(
        f"a lease is opened by its JSON, its descriptor or its id, not by a {type(lease).__name__}"
    )


def _place(lease: wire.LeaseDescriptor) -> tuple[int, ...]:
    return (lease.slot, lease.sequence, lease.byte_offset, lease.byte_size, lease.num_tokens)
