"""A worker's answer to ``describe``, checked: the region, the target, and the descriptors that map them."""

from __future__ import annotations

from typing import Self

from . import messages as wire
from .control_page import control_byte_size
from .descriptors import close_all
from .errors import UnsupportedTransportError
from .memfd import check_sealed


class Description:
    """The reply with its descriptors, which ``close`` (or leaving the context) closes; mappings outlive them.

    Attributes:
        reply: region and target.
        control_fd: the control page, read-only.
        slab_fd: the slab, read-only; ``None`` unless ``reply.region.kind`` is ``memfd``.
    """

    def __init__(self, reply: wire.DescribeReply, control_fd: int, slab_fd: int | None) -> None:
        self.reply = reply
        self.control_fd = control_fd
        self.slab_fd = slab_fd
        self._open = [control_fd] if slab_fd is None else [control_fd, slab_fd]

    def close(self) -> None:
        """Closes the descriptors; idempotent."""
        close_all(self._open)
        self._open.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


def description_of(reply: wire.DescribeReply, descriptors: list[int]) -> Description:
    """Checks region and descriptors against each other; closes the descriptors when it refuses.

    Raises:
        UnsupportedTransportError: numbers that contradict one another, a wrong number of descriptors, or memory that
            is not sealed or shorter than announced.
    """
    region = reply.region
    try:
        region.validate()
        expected = 2 if region.kind == "memfd" else 1
        if len(descriptors) != expected:
            raise ValueError(f"{len(descriptors)} descriptors came with the region, not {expected}")  # noqa: TRY301
        if region.control_byte_size < control_byte_size(region.slots):
            raise ValueError("the control page is announced shorter than its slots")  # noqa: TRY301
        check_sealed(descriptors[0], region.control_byte_size)
        for slab in descriptors[1:]:
            check_sealed(slab, region.byte_size)
    except ValueError as error:
        close_all(descriptors)
        raise UnsupportedTransportError(f"the worker's region cannot be mapped: {error}") from error
    return Description(reply, descriptors[0], descriptors[1] if len(descriptors) > 1 else None)
