"""One connection to a worker that is ready: its target, its slab, and the calls that the routes make."""

from __future__ import annotations

import ctypes
import time
from typing import Any

import msgspec
from safetensors import TensorSpec, serialize

from ..transport import messages as wire
from ..transport.client import WorkerClient
from ..transport.control_page import ControlPageReader
from ..transport.description import Description
from ..transport.memfd import map_private, map_read_only


class WorkerSession:
    """What the API process knows of a ready worker.

    Args:
        client: the connection, which holds all REST leases.
        description: region and target; the session owns its descriptors.
    """

    def __init__(self, client: WorkerClient, description: Description) -> None:
        self.client = client
        self.target = description.reply.target
        self.region = description.reply.region
        self._description = description
        size = self.region.control_byte_size
        self._control_map = map_read_only(description.control_fd, size)
        self._control = ControlPageReader(memoryview(self._control_map))

    @property
    def epoch(self) -> str:
        """The worker's epoch."""
        return self.region.epoch

    async def forward(
        self,
        *,
        prompt_token_ids: list[list[int]] | None,
        prompts: list[str] | None,
        lease_ttl_s: float,
        deadline_s: float,
        client: str,
    ) -> wire.ForwardReply:
        """Runs prompts; when the awaiting task is cancelled, so is the work."""
        request = wire.Forward(
            id=0,
            prompt_token_ids=prompt_token_ids,
            prompts=prompts,
            lease_ttl_s=lease_ttl_s,
            deadline_s=deadline_s,
            client=client,
        )
        return await self.client.call(request)

    async def rows(self, leases: list[wire.LeaseDescriptor]) -> list[Rows]:
        """The bytes of leases that this session holds, copied out of the slab."""
        return [await self._rows(lease) for lease in leases]

    def release(self, lease: wire.LeaseDescriptor) -> None:
        """Ends this session's hold without waiting for the answer."""
        self.client.release_soon([lease])

    def still_valid(self, lease: wire.LeaseDescriptor, deadline: float) -> bool:
        """Whether rows read until now were those of the lease: same sequence, not expired, worker alive."""
        if self.client.closed.is_set() or time.monotonic() >= deadline:
            return False
        return self._control.sequence(lease.slot) == lease.sequence

    def close(self) -> None:
        """Lets the descriptors go; mappings in use stay."""
        self._description.close()

    async def _rows(self, lease: wire.LeaseDescriptor) -> Rows:
        if self._description.slab_fd is None:
            data = await self.client.read_all(lease)
            return Rows(lease, (ctypes.c_ubyte * len(data)).from_buffer_copy(data))
        offset = self.region.base_offset + lease.byte_offset
        return Rows(lease, map_private(self._description.slab_fd, offset, lease.byte_size))


class Rows:
    """Rows of one lease: a private copy, or a mapping of the slab that a later check must confirm."""

    def __init__(self, lease: wire.LeaseDescriptor, data: ctypes.Array[ctypes.c_ubyte]) -> None:
        self.lease = lease
        self.data = data

    def spec(self) -> TensorSpec:
        """As safetensors wants it; ``data`` must outlive the call."""
        return TensorSpec(
            dtype=self.lease.dtype,
            shape=self.lease.shape,
            data_ptr=ctypes.addressof(self.data),
            data_len=self.lease.byte_size,
        )


class TokenIds:
    """Token ids of one lease as an int64 tensor."""

    def __init__(self, token_ids: list[int]) -> None:
        self._data = (ctypes.c_int64 * len(token_ids))(*token_ids)
        self._length = len(token_ids)

    def spec(self) -> TensorSpec:
        """As safetensors wants it."""
        return TensorSpec(
            dtype="int64",
            shape=[self._length],
            data_ptr=ctypes.addressof(self._data),
            data_len=8 * self._length,
        )


def safetensors_of(named: list[tuple[str, str, Rows]], target: wire.TargetDescription, epoch: str) -> bytes:
    """Serialises rows and their token ids; blocks for the copy, so call it off the loop.

    Args:
        named: for each lease the names of its two tensors, and its rows.
        target: goes into the metadata, as do the layout and the axes, so that the file explains itself.
        epoch: of the worker that computed the rows.
    """
    token_ids = [TokenIds(rows.lease.token_ids) for _, _, rows in named]
    tensors: dict[str, TensorSpec] = {}
    for (hidden_name, ids_name, rows), ids in zip(named, token_ids, strict=True):
        tensors[hidden_name] = rows.spec()
        tensors[ids_name] = ids.spec()
    metadata = {
        "format": "pt",
        "model": target.model,
        "revision": target.revision or "",
        "axes": "token,hidden",
        "dtype": target.hidden_states.dtype,
        "epoch": epoch,
        "hidden_states": _json(target.hidden_states),
    }
    return bytes(serialize(tensors, metadata))


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
