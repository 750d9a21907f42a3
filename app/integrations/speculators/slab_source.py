"""Samples from the slab on this machine: mapped, and copied once."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ...reader import ConnectionLostError, Lease, Region, StaleLeaseError

if TYPE_CHECKING:
    import torch

TIMEOUT_S = 10.0  # as long as hs_connectors' file backend waits


class SlabSource:
    """One connection to an exporter's socket, made on first use and anew in every process and after every loss.

    Args:
        path: the socket; ``None``: where ``draftport serve`` has it.
    """

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._region: Region | None = None
        self._pid = 0

    def __getstate__(self) -> dict[str, Any]:
        """For data loaders that spawn their workers: a connection stays where it is."""
        return {"_path": self._path, "_region": None, "_pid": 0}

    def connect(self) -> Region:
        """The connection of this process.

        Raises:
            ConnectionLostError: nobody listens.
        """
        if self._region is None or self._pid != os.getpid():
            self._region = Region.attach(self._path, timeout_s=TIMEOUT_S, client_name="speculators")
            self._pid = os.getpid()
        return self._region

    def sample(self, lease_id: str) -> tuple[torch.Tensor, list[int], int]:
        """Rows ``[num_tokens, width]`` as a private tensor on the CPU or GPU they are on, token ids, number of layers.

        Raises:
            RemoteError: the exporter has no such rows; its ``code`` says why (``slab_full``, ``lease_expired``, ...).
            ConnectionLostError: the exporter is gone; the next call connects anew.
            StaleLeaseError: it went while the rows were being copied.
        """
        region = self.connect()
        try:
            with region.open(lease_id) as lease:
                rows = _copied(lease)
        except (ConnectionLostError, StaleLeaseError):
            self.close()
            raise
        points = region.target.hidden_states.capture_points
        return rows, lease.descriptor.token_ids, len(points) if points else 1

    def delete(self, lease_id: str) -> None:
        """Nothing: the hold ended when the rows were copied."""

    def close(self) -> None:
        """Hangs up, in the process that connected."""
        if self._region is not None:
            self._region.close()
            self._region = None


def _copied(lease: Lease) -> torch.Tensor:
    rows: torch.Tensor = lease.tensor(copy=True)
    lease.check()
    return rows
