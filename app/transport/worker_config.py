"""What the API process (or ``draftport worker``) tells a worker process to do, as JSON on its command line."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct


class WorkerConfig(Struct, frozen=True, kw_only=True):
    """Settings of the worker; names and meaning as in the README's table of settings.

    ``target`` is a directory or a hub id, ``None`` for the demo target below ``cache_dir``. ``shown_model`` is the
    name that ``/v1/target`` may show (a path outside the model roots stays private). ``max_num_batched_tokens``
    ``None``: 2048 or the model's limit, the smaller.
    """

    socket_path: str | None = None
    socket_group: str | None = None
    target: str | None = None
    revision: str | None = None
    shown_model: str | None = None
    draft: str | None = None
    dtype: str = "auto"
    device: str = "auto"
    capture: Literal["final", "aux_layers", "pre_hc_head"] | None = None
    aux_layer_ids: tuple[int, ...] | None = None
    hub: Literal["off", "cache", "on"] = "off"
    slots: Annotated[int, Meta(ge=1)] = 8
    max_num_batched_tokens: int | None = None
    max_queue_tokens: Annotated[int, Meta(ge=1)] | None = None
    cache_dir: str = ""
    log_level: str = "INFO"
    log_format: Literal["auto", "json", "text"] = "auto"

    def to_json(self) -> str:
        """The command-line form."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> WorkerConfig:
        """Reads the command-line form; ``msgspec.ValidationError`` when it is no such thing."""
        return msgspec.json.decode(text, type=cls)
