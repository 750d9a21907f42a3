"""The backend ``draftport`` of ``hs_connectors``, by which speculators' scripts find, set up and use our slab.

Source of the interface: hs-connectors 0.9, ``hs_connectors/transfer.py``.
"""

from __future__ import annotations

import argparse
import contextlib
from typing import TYPE_CHECKING, Any

from hs_connectors import HiddenStatesBackend, HiddenStatesTransfer

from .rest_source import RestSource
from .slab_source import SlabSource

if TYPE_CHECKING:
    import torch


class DraftportTransfer(HiddenStatesTransfer):  # type: ignore[misc]  # hs_connectors is no dependency
    """Reads the sample that vLLM's answer names by its lease.

    Args:
        source: the slab on this machine, or REST. It connects when it is first used, in whichever process that is.
    """

    def __init__(self, source: SlabSource | RestSource) -> None:
        self._source = source

    def setup(self) -> None:
        """Connects, in the process of the data loader's worker."""
        self._source.connect()

    def get_cached(self, file_idx: int) -> dict[str, torch.Tensor] | None:  # noqa: ARG002 - their signature
        """Nothing is kept from one epoch of the training to the next."""
        return None

    def get_generated(self, hs_transfer_params: dict[str, Any]) -> dict[str, torch.Tensor] | None:
        """The sample: ``hidden_states`` ``[num_tokens, layers, hidden]`` and ``token_ids`` int64; ``None``: no lease.

        Raises:
            RemoteError: the exporter has no rows for it (or ``DownloadError`` by REST); speculators asks vLLM anew.
            ConnectionLostError: the exporter is gone (or ``httpx.HTTPError``); the next call connects anew.
        """
        lease_id = hs_transfer_params.get("handle")
        if not lease_id:
            return None
        import torch  # noqa: PLC0415 - the trainer has loaded it

        rows, token_ids, layers = self._source.sample(lease_id)
        return {
            "hidden_states": rows.view(rows.shape[0], layers, -1),
            "token_ids": torch.tensor(token_ids, dtype=torch.int64),
        }

    def delete(self, handle: str) -> None:
        """Gives the sample's rows back."""
        self._source.delete(handle)

    def close(self) -> None:
        """Hangs up; the next use connects anew. speculators never asks for it: the end of the process does it."""
        self._source.close()


@HiddenStatesBackend.register("draftport")
class DraftportBackend(HiddenStatesBackend):  # type: ignore[misc]  # hs_connectors is no dependency
    """Hidden states through a Draftport slab: on vLLM's machine by its socket, elsewhere by Draftport's REST."""

    @staticmethod
    def add_train_args(parser: argparse.ArgumentParser) -> None:
        """Options of the trainer."""
        _add(
            parser, "--draftport-socket", help="The exporter's socket. Default: where draftport serve has it."
        )
        _add(
            parser,
            "--draftport-url",
            help="Draftport's URL, for a trainer on another machine than vLLM; the socket is not used then.",
        )
        _add(parser, "--draftport-token-file", help="File with the bearer token for --draftport-url.")

    @staticmethod
    def add_launch_args(parser: argparse.ArgumentParser) -> None:
        """Options of vLLM's launcher."""
        _add(parser, "--draftport-socket", help="Where to make the socket. Default: where readers look.")
        _add(parser, "--draftport-slots", type=int, default=8, help="Slots of the slab. (Default: 8)")
        _add(
            parser,
            "--draftport-rows-per-slot",
            type=int,
            help="Rows of a slot, the longest prompt that is exported. Default: max_num_batched_tokens.",
        )

    @staticmethod
    def from_train_args(args: argparse.Namespace, data_path: str) -> DraftportTransfer:  # noqa: ARG004 - their signature
        """The trainer's side."""
        if args.draftport_url:
            return DraftportTransfer(RestSource(args.draftport_url, args.draftport_token_file))
        return DraftportTransfer(SlabSource(args.draftport_socket))

    @staticmethod
    def build_kv_transfer_config(args: argparse.Namespace) -> dict[str, Any]:
        """What ``vllm serve`` is to be told as ``--kv-transfer-config``."""
        settings = {
            "socket_path": args.draftport_socket,
            "slots": args.draftport_slots,
            "rows_per_slot": args.draftport_rows_per_slot,
        }
        return {
            "kv_connector": "DraftportConnector",
            "kv_role": "kv_producer",
            "kv_connector_module_path": f"{__package__.rpartition('.')[0]}.vllm.connector",
            "kv_connector_extra_config": {k: v for k, v in settings.items() if v is not None},
        }


def _add(parser: argparse.ArgumentParser, name: str, **options: Any) -> None:
    """Adds an option, unless one of that name is there: one parser may take both lists."""
    with contextlib.suppress(argparse.ArgumentError):
        parser.add_argument(name, **{"type": str, "default": None} | options)
