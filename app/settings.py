"""Settings: ``DRAFTPORT_*`` environment variables, each also a flag of ``draftport serve``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from .transport.socket_path import SOCKET_NAME, default_runtime_dir

ENV_PREFIX = "DRAFTPORT_"


def _split(separator: str) -> BeforeValidator:
    def split(value: object) -> object:
        if isinstance(value, str):
            return [part.strip() for part in value.split(separator) if part.strip()]
        return value

    return BeforeValidator(split)


def _empty_is_none(value: object) -> object:
    """An empty variable means unset: manifests often leave one empty."""
    return None if value == "" else value


def _absolute(path: Path) -> Path:
    if not path.is_absolute():
        raise ValueError("must be an absolute path")
    return path


OptionalText = Annotated[str | None, BeforeValidator(_empty_is_none)]
OptionalPath = Annotated[Path | None, BeforeValidator(_empty_is_none)]
OptionalSize = Annotated[Annotated[int, Field(ge=1)] | None, BeforeValidator(_empty_is_none)]
Roots = Annotated[list[Annotated[Path, AfterValidator(_absolute)]], NoDecode, _split(":")]
Patterns = Annotated[list[str], NoDecode, _split(",")]
LayerIds = Annotated[list[int] | None, NoDecode, BeforeValidator(_empty_is_none), _split(",")]


def default_cache_dir() -> Path:
    """``$XDG_CACHE_HOME/draftport``, else ``~/.cache/draftport``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "draftport"


class Settings(BaseSettings):
    """All settings. The descriptions are those of ``--help`` and of the README's table."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, extra="forbid", hide_input_in_errors=True, frozen=True, validate_default=True
    )

    host: str = Field("127.0.0.1", description="Address to listen on (`0.0.0.0` in the image)")
    port: int = Field(8000, ge=0, le=65535, description="TCP port; `0` takes a free one")
    runtime_dir: Path = Field(
        default_factory=default_runtime_dir,
        description="Directory of the worker's socket `worker.sock`, 0700; by default "
        "`$XDG_RUNTIME_DIR/draftport`, else `/tmp/draftport-<uid>`",
    )
    cache_dir: Path = Field(
        default_factory=default_cache_dir,
        description="Where the demo target is kept; by default `$XDG_CACHE_HOME/draftport`, else "
        "`~/.cache/draftport`",
    )
    socket_group: OptionalText = Field(
        None, description="Group that may use the worker's socket (0660 in a 0750 setgid directory)"
    )
    target: OptionalText = Field(
        None, description="Target model to hold: a directory or a hub id; empty: a tiny demo target"
    )
    revision: OptionalText = Field(None, description="Revision of a target from the hub")
    draft: OptionalText = Field(
        None, description="Draft checkpoint from which the captured hidden states are derived"
    )
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = Field(
        "auto", description="dtype of the target; `auto` is the checkpoint's"
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="Device of the target; `auto` is CUDA where there is a GPU"
    )
    capture: Annotated[
        Literal["final", "aux_layers", "pre_hc_head"] | None, BeforeValidator(_empty_is_none)
    ] = Field(
        None,
        description="Hidden states to hand over; by default what `DRAFT` consumes, `aux_layers` where "
        "`AUX_LAYER_IDS` are given, else `final`",
    )
    aux_layer_ids: LayerIds = Field(
        None, description="Capture points of `aux_layers`, comma-separated: `2,18,33`"
    )
    model_roots: Roots = Field(
        default_factory=list, description="Directories whose models callers may name, colon-separated"
    )
    hub: Literal["off", "cache", "on"] = Field(
        "off", description="Whether callers may name hub ids: `cache` reads the local hub cache only"
    )
    hub_allow: Patterns = Field(
        default_factory=list, description="Patterns of allowed hub ids, comma-separated: `org/*,other/name`"
    )
    hub_timeout_s: float = Field(
        10.0, gt=0, le=120, description="Seconds that one look-up in the hub may take"
    )
    slots: int = Field(8, ge=1, le=4096, description="Slots of the slab, each one step of rows")
    max_num_batched_tokens: OptionalSize = Field(
        None,
        description="Tokens per step and rows per slot; by default 2048 or the model's limit, the smaller",
    )
    worker: Literal["embedded", "attach", "off"] = Field(
        "embedded",
        description="`embedded` starts the worker, `attach` uses one that runs elsewhere, `off` has none",
    )
    token_file: OptionalPath = Field(
        None, description="File with the bearer token that everything but the probes then needs"
    )
    expose_region: bool = Field(
        default=False, description="Answer `/v1/hidden-states/region` over TCP: the handle is write access"
    )
    tls_cert_file: OptionalPath = Field(None, description="TLS certificate chain (PEM)")
    tls_key_file: OptionalPath = Field(None, description="TLS key (PEM)")
    max_body_bytes: int = Field(4 << 20, ge=1024, le=15 << 20, description="Largest request body, in bytes")
    max_leases_per_client: int = Field(1024, ge=1, description="Leases that one API client may hold")
    request_timeout_s: float = Field(
        60.0, gt=0, le=600, description="Seconds that a prompt may wait for its hidden states"
    )
    shutdown_timeout_s: int = Field(
        20, ge=1, le=600, description="Seconds that running requests get after SIGTERM"
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field("INFO", description="Log level")
    log_format: Literal["auto", "json", "text"] = Field(
        "auto", description="Log lines; `auto` is text on a terminal, else JSON"
    )

    @property
    def socket_path(self) -> Path:
        """The worker's unix socket."""
        return self.runtime_dir / SOCKET_NAME

    @model_validator(mode="after")
    def _tls_needs_both_files(self) -> Settings:
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError("TLS_CERT_FILE and TLS_KEY_FILE go together")
        return self


def unknown_variables(environ: dict[str, str] | os._Environ[str] = os.environ) -> list[str]:
    """``DRAFTPORT_*`` variables that no setting has: misspelt ones would otherwise be ignored in silence."""
    known = {f"{ENV_PREFIX}{name}".upper() for name in Settings.model_fields}
    return sorted(
        name for name in environ if name.upper().startswith(ENV_PREFIX) and name.upper() not in known
    )
