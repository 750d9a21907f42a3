"""vLLM's load config, and the fallback that keeps a draft on one pipeline stage from waiting for the other stages.

Sources: vLLM 0.32 and 0.33, ``vllm/config/load.py`` (fields, types, bounds, defaults) and
``vllm/v1/worker/gpu/spec_decode/utils.py`` (the fallback).
"""

from __future__ import annotations

import copy
import dataclasses
import logging
import re
import threading
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Meta, Struct

from .engines import GUARDED_FORMAT

_logger = logging.getLogger(__name__)

_Config = TypeVar("_Config")
_AtLeastOne = Annotated[int, Meta(ge=1)]


class FieldError(NamedTuple):
    """One field that does not fit: its dotted path, a stable code, and what to do."""

    field: str
    code: str
    detail: str


class LoadConfigError(ValueError):
    """A load config, or what belongs to it, does not fit.

    Attributes:
        code: ``invalid_request``.
        field: dotted path of the first field that does not fit.
        detail: what is wrong with it and what to do.
        errors: all of them.
    """

    code = "invalid_request"

    def __init__(self, *errors: FieldError) -> None:
        super().__init__("; ".join(f"{error.field}: {error.detail}" for error in errors))
        self.errors = errors
        self.field = errors[0].field
        self.detail = errors[0].detail


class LoadConfig(Struct, frozen=True, kw_only=True):
    """The fields of vLLM's ``LoadConfig``, with its defaults; ``load_format`` is lower-cased, not stripped.

    Attributes:
        load_format: name of a loader; plug-ins may register more names than vLLM itself.
        download_dir: where weights are downloaded to.
        safetensors_load_strategy: how safetensors files are read.
        safetensors_prefetch_num_threads: threads of the prefetching strategy, at least 1.
        safetensors_prefetch_block_size: bytes per read of the prefetching strategy, at least 1.
        model_loader_extra_config: options of the loader, checked by the loader only.
        device: where weights are loaded to.
        ignore_patterns: files of the repository to leave out.
        use_tqdm_on_load: whether a progress bar is shown.
        pt_load_map_location: where ``.pt`` checkpoints are mapped to.
    """

    load_format: str = "auto"
    download_dir: str | None = None
    safetensors_load_strategy: Literal["lazy", "eager", "prefetch", "torchao"] | None = None
    safetensors_prefetch_num_threads: _AtLeastOne = 8
    safetensors_prefetch_block_size: _AtLeastOne = 16 * 1024 * 1024
    model_loader_extra_config: dict[str, Any] = msgspec.field(default_factory=dict)
    device: str | None = None
    ignore_patterns: list[str] | str = msgspec.field(default_factory=lambda: ["original/**/*"])
    use_tqdm_on_load: bool = True
    pt_load_map_location: str | dict[str, str] = "cpu"

    def __post_init__(self) -> None:
        if not isinstance(self.load_format, str):
            raise LoadConfigError(
                FieldError("load_format", "invalid_type", "Give the name of a load format.")
            )
        msgspec.structs.force_setattr(self, "load_format", self.load_format.lower())


_FIELDS: Final = {field.name: field for field in msgspec.structs.fields(LoadConfig)}
_INNER_PATH: Final = re.compile(r" - at `(?:key in )?\$(?P<path>[^`]*)`$")


def parse_load_config(fields: Mapping[str, Any], *, at: str = "load_config") -> LoadConfig:
    """Build a load config from a JSON object.

    Args:
        fields: names and values; what is left out has vLLM's default.
        at: what the object is called in the request, for the paths of errors.

    Raises:
        LoadConfigError: not an object, an unknown field, a wrong type or bound; all of them at once.
    """
    if not isinstance(fields, Mapping):
        raise LoadConfigError(FieldError(at, "invalid_type", "Give the load config as a JSON object."))
    errors: list[FieldError] = []
    values: dict[str, Any] = {}
    for name, value in fields.items():
        field = _FIELDS.get(name) if isinstance(name, str) else None
        if field is None:
            detail = f"vLLM's load config has no such field; it has {', '.join(_FIELDS)}."
            errors.append(FieldError(f"{at}.{str(name)[:64]}", "unknown_field", detail))
            continue
        try:
            values[field.name] = msgspec.convert(value, field.type)
        except msgspec.ValidationError as error:
            errors.append(_field_error(f"{at}.{name}", str(error)))
    if errors:
        raise LoadConfigError(*errors)
    return LoadConfig(**values)


def _field_error(path: str, message: str) -> FieldError:
    inner = _INNER_PATH.search(message)
    if inner is not None:
        path, message = path + inner["path"], message[: inner.start()]
    bound = ">=" in message or "out of range" in message
    return FieldError(path, "out_of_range" if bound else "invalid_type", f"{message}.")


def check_pipeline_parallel_size(pipeline_parallel_size: object) -> int:
    """The size, if it is a positive integer.

    Raises:
        LoadConfigError: it is not.
    """
    size = pipeline_parallel_size
    if not isinstance(size, int) or isinstance(size, bool):
        raise LoadConfigError(
            FieldError("pipeline_parallel_size", "invalid_type", "Give an integer of at least 1.")
        )
    if size < 1:
        raise LoadConfigError(
            FieldError("pipeline_parallel_size", "out_of_range", "Give an integer of at least 1.")
        )
    return size


def get_pp_safe_draft_load_config(load_config: _Config, pipeline_parallel_size: int) -> _Config:
    """The load config that a draft model can be loaded with when the target spans several pipeline stages.

    The draft lives on one stage only. fastsafetensors broadcasts over all ranks, so the stage with the draft would
    wait for stages that load nothing, forever.

    Args:
        load_config: ``LoadConfig``, or any object with ``load_format`` (vLLM's own config, a dataclass, ...).
        pipeline_parallel_size: the *target's* number of pipeline stages.

    Returns:
        A copy with ``load_format="auto"`` where there are several stages and the format is exactly
        ``fastsafetensors`` (with one warning per process), else the same object. The input is never changed.

    Raises:
        LoadConfigError: ``pipeline_parallel_size`` is no positive integer.
    """
    stages = check_pipeline_parallel_size(pipeline_parallel_size)
    load_format: Any = load_config.load_format  # type: ignore[attr-defined]  # any object that has one
    if stages == 1 or load_format != GUARDED_FORMAT:
        return load_config
    _warning.once(
        "load_format=fastsafetensors runs collectives over all ranks and would hang a draft model that exists on one "
        "of %d pipeline stages; the draft is loaded with load_format=auto.",
        stages,
    )
    safe: _Config = _copy_with_auto(load_config)
    return safe


def _copy_with_auto(config: Any) -> Any:
    """A copy of whatever kind of object it is, with ``load_format="auto"`` and everything else equal."""
    change = {"load_format": "auto"}
    if isinstance(config, Struct):
        return msgspec.structs.replace(config, **change)
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return dataclasses.replace(config, **change)
    if isinstance(config, tuple) and hasattr(config, "_replace"):
        return config._replace(**change)
    if hasattr(config, "__replace__"):
        return config.__replace__(**change)
    if hasattr(config, "model_copy"):
        return config.model_copy(update=change)
    twin = copy.copy(config)
    twin.load_format = "auto"
    return twin


class _Once:
    """A warning that a process says once, however many threads ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._said = False

    def once(self, message: str, *args: object) -> None:
        with self._lock:
            said, self._said = self._said, True
        if not said:
            _logger.warning(message, *args)


_warning = _Once()
