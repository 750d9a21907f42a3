"""Looks at a target before any weight is read: is it there, is it safe, can it serve the layout, does it fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..drafting.layout import CaptureLayout, LayoutError, capture_layout
from ..drafting.shapes import as_count, lookup, read_shape
from ..transport.messages import HiddenStatesLayout, TargetDescription
from ..transport.worker_config import WorkerConfig
from .checkpoint import Checkpoint, read_directory
from .demo import DEMO_MODEL, demo_target
from .device import ELEMENT_BYTES, describe_device, free_bytes, resolve_device, resolve_dtype
from .hub_snapshot import find_checkpoint, find_draft_config
from .safetensors_header import common_float_dtype, loaded_bytes
from .target import TargetPlan
from .target_error import TargetError

DEFAULT_MAX_NUM_BATCHED_TOKENS = 2048


def inspect_target(config: WorkerConfig) -> TargetPlan:
    """Finds and checks the target, reading small files only.

    Raises:
        TargetError: with one sentence that tells what to change.
    """
    checkpoint = _checkpoint_of(config)
    shape = read_shape(checkpoint.config)
    dtype = resolve_dtype(config.dtype, shape.dtype, common_float_dtype(checkpoint.headers))
    limit, max_prompt_tokens = token_limits(config.max_num_batched_tokens, checkpoint.config)
    layout = _layout_of(config, checkpoint.config, dtype, limit)
    vocab_size = _required(shape.vocab_size, "vocab_size", checkpoint.shown)
    _check_architecture(checkpoint)
    device = resolve_device(config.device)
    row_bytes = layout.width * ELEMENT_BYTES[dtype]
    weight_bytes = (
        loaded_bytes(checkpoint.headers, ELEMENT_BYTES[dtype])
        if checkpoint.headers
        else checkpoint.file_bytes
    )
    _check_memory(checkpoint.shown, weight_bytes, device)
    description = TargetDescription(
        model=_model_name(config, checkpoint),
        revision=checkpoint.revision,
        architecture=_architecture(checkpoint),
        dtype=dtype,
        hidden_size=layout.hidden_size,
        num_hidden_layers=layout.num_layers,
        vocab_size=vocab_size,
        max_num_batched_tokens=limit,
        device=describe_device(device),
        hidden_states=_layout_message(layout, dtype, row_bytes, limit),
        has_tokenizer=checkpoint.has_tokenizer,
    )
    return TargetPlan(
        description=description,
        layout=layout,
        checkpoint=checkpoint,
        row_bytes=row_bytes,
        width=layout.width,
        dtype=dtype,
        device=device,
        weight_bytes=weight_bytes,
        max_prompt_tokens=max_prompt_tokens,
    )


def token_limits(configured: int | None, config: Mapping[str, Any]) -> tuple[int, int]:
    """``max_num_batched_tokens`` and the longest prompt: what was set or 2048, and what the model has positions for.

    Raises:
        TargetError: ``limit_invalid``.
    """
    positions = as_count(lookup(config, "max_position_embeddings", "n_positions"))
    if configured is not None and configured < 1:
        raise TargetError("limit_invalid", "MAX_NUM_BATCHED_TOKENS must be at least 1; raise it.")
    limit = configured or min(DEFAULT_MAX_NUM_BATCHED_TOKENS, positions or DEFAULT_MAX_NUM_BATCHED_TOKENS)
    return limit, min(limit, positions or limit)


def _checkpoint_of(config: WorkerConfig) -> Checkpoint:
    if config.target is None:
        return read_directory(demo_target(config.cache_dir), DEMO_MODEL)
    return find_checkpoint(config.target, config.revision, config.hub)


def _layout_of(config: WorkerConfig, target: Mapping[str, Any], dtype: str, rows: int) -> CaptureLayout:
    draft = find_draft_config(config.draft, config.hub) if config.draft is not None else None
    try:
        return capture_layout(
            target,
            capture=config.capture,
            aux_layer_ids=config.aux_layer_ids,
            draft_config=draft,
            dtype=dtype,
            rows=rows,
        )
    except LayoutError as error:
        raise TargetError("layout_unsupported", error.detail) from error


def _check_architecture(checkpoint: Checkpoint) -> None:
    if not isinstance(checkpoint.config.get("model_type"), str):
        raise TargetError(
            "target_invalid",
            f"config.json of {checkpoint.shown} has no model_type; copy the checkpoint anew.",
        )
    if checkpoint.config.get("is_encoder_decoder") is True:
        raise TargetError(
            "target_unsupported",
            f"{checkpoint.shown} is an encoder-decoder; give a decoder-only language model.",
        )


def _check_memory(shown: str, weight_bytes: int, device: str) -> None:
    free = free_bytes(device)
    if free is not None and weight_bytes > free:
        raise TargetError(
            "out_of_memory",
            f"The weights of {shown} take {weight_bytes} bytes and {device} has {free} bytes free; "
            "free some, set a smaller DTYPE or take a smaller target.",
        )


def _required(value: int | None, name: str, shown: str) -> int:
    if value is None:
        raise TargetError(
            "target_invalid", f"config.json of {shown} has no usable {name}; copy the checkpoint anew."
        )
    return value


def _model_name(config: WorkerConfig, checkpoint: Checkpoint) -> str:
    return config.shown_model or checkpoint.shown


def _architecture(checkpoint: Checkpoint) -> str:
    names = read_shape(checkpoint.config).architectures
    return names[0] if names else str(checkpoint.config.get("model_type"))


def _layout_message(layout: CaptureLayout, dtype: str, row_bytes: int, rows: int) -> HiddenStatesLayout:
    return HiddenStatesLayout(
        source=layout.source,
        layer_ids=list(layout.layer_ids) if layout.layer_ids is not None else None,
        capture_points=list(layout.capture_points) if layout.capture_points is not None else None,
        norm=layout.norm,
        width=layout.width,
        dtype=dtype,
        bytes_per_token=row_bytes,
        rows=rows,
        buffer_bytes=rows * row_bytes,
    )
