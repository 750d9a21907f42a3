"""What ``kv_connector_extra_config`` may say."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from ...transport.messages import LeaseTtl
from ...transport.socket_path import default_socket_path


class ConnectorSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the connector.

    Attributes:
        socket_path: where readers connect; ``None``: where ``draftport serve`` would look. With data parallelism
            every rank has a socket of its own: the rank goes before the suffix (``worker-1.sock``).
        socket_group: group that may connect, besides the owner.
        slots: slots of the slab.
        rows_per_slot: rows of each, and so the longest prompt that is exported; ``None``: ``max_num_batched_tokens``.
        lease_ttl_s: how long a prompt's rows wait for their reader, unless the request says otherwise.
        export: ``all`` prompts, or those whose request asks (``kv_transfer_params: {"draftport": {"export": true}}``).
        capture: ``aux_layers``: the layers that ``extract_hidden_states`` captures. ``pre_hc_head``: all residual streams
            before they are joined, of targets that keep them for their drafter; see ``wide_source``.
        api_url: where vLLM's own API listens (``http://127.0.0.1:8000``), for clients who ask through the socket or
            through Draftport's REST; ``None``: those are refused, and rows come from vLLM's own traffic only.
        api_key_file: file with the API's key, where it wants one.
    """

    socket_path: str | None = None
    socket_group: str | None = None
    slots: Annotated[int, Meta(ge=1)] = 8
    rows_per_slot: Annotated[int, Meta(ge=1)] | None = None
    lease_ttl_s: LeaseTtl = 30.0
    export: Literal["all", "requested"] = "all"
    capture: Literal["aux_layers", "pre_hc_head"] = "aux_layers"
    api_url: str | None = None
    api_key_file: str | None = None

    def socket_of(self, data_parallel_rank: int, data_parallel_size: int) -> Path:
        """The socket's path for one data-parallel rank."""
        path = Path(self.socket_path) if self.socket_path else default_socket_path()
        return path if data_parallel_size == 1 else path.with_stem(f"{path.stem}-{data_parallel_rank}")

    def api_key(self) -> str | None:
        """The key for vLLM's API: of the file, else of the environment, where ``vllm serve`` reads it too."""
        if self.api_key_file is not None:
            return Path(self.api_key_file).read_text(encoding="utf-8").strip()
        return os.environ.get("VLLM_API_KEY")


class RequestSettings(Struct, frozen=True, kw_only=True):
    """What a request may say in ``kv_transfer_params["draftport"]``.

    Attributes:
        export: whether its prompt's rows are wanted; ``None``: as the connector is set.
        lease_ttl_s: how long they wait for their reader.
        ticket: names a ``forward`` of the socket that this request belongs to.
    """

    export: bool | None = None
    lease_ttl_s: LeaseTtl | None = None
    ticket: Annotated[str, Meta(max_length=64)] | None = None


def connector_settings(extra_config: Mapping[str, Any]) -> ConnectorSettings:
    """Reads the connector's settings.

    Raises:
        ValueError: an unknown setting, or a value that does not fit; the sentence names it.
    """
    try:
        return msgspec.convert(dict(extra_config), ConnectorSettings)
    except msgspec.ValidationError as error:
        raise ValueError(f"kv_connector_extra_config of DraftportConnector: {error}") from error


def request_settings(kv_transfer_params: object) -> RequestSettings:
    """Reads a request's settings; what does not fit counts as unsaid, for a request never fails on its export."""
    given = kv_transfer_params.get("draftport") if isinstance(kv_transfer_params, Mapping) else None
    try:
        return msgspec.convert(given or {}, RequestSettings)
    except msgspec.ValidationError:
        return RequestSettings()
