"""Where a config.json comes from: inline, a directory below a model root, the hub. Limits and refusals live here."""

from __future__ import annotations

from .errors import SOURCE_ERROR_STATUS, SourceError
from .hub_environment import HubEnvironment
from .json_text import (
    ParsedBody,
    ParsedConfig,
    config_sha256_of,
    duplicate_key_findings,
    parse_config,
    parse_json_body,
)
from .loaded import LoadedModel
from .model_sources import ModelSources
from .operator_config import load_operator_config
from .settings import HubMode, SourceSettings

__all__ = [
    "SOURCE_ERROR_STATUS",
    "HubEnvironment",
    "HubMode",
    "LoadedModel",
    "ModelSources",
    "ParsedBody",
    "ParsedConfig",
    "SourceError",
    "SourceSettings",
    "config_sha256_of",
    "duplicate_key_findings",
    "load_operator_config",
    "parse_config",
    "parse_json_body",
]
