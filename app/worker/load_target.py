"""Loads a planned target with transformers: known architectures only, safetensors only, every weight accounted for."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

import msgspec
import torch
import transformers
from transformers import CONFIG_MAPPING, MODEL_MAPPING

from .decoder import decoder_layers_of, stream_head_of, text_model_of
from .forward import TransformersTarget
from .hub_snapshot import fetch_shards
from .safetensors_header import ShardHeader
from .target import ProgressCallback, TargetPlan
from .target_error import TargetError
from .tokenize import load_tokenizer
from .weights_progress import ByteCounter, CountedSlice, open_shards

_log = logging.getLogger(__name__)


def load_target(plan: TargetPlan, progress: ProgressCallback) -> TransformersTarget:
    """Builds the model's skeleton, checks that the layout can be hooked, then reads the weights.

    Raises:
        TargetError: ``target_unsupported``, ``layout_unsupported``, ``target_invalid``, ``out_of_memory``.
    """
    _quieten()
    config = _build_config(plan)
    model_class = _model_class(config, plan.checkpoint.shown)
    skeleton = _build_skeleton(model_class, config, plan.checkpoint.shown)
    _check_hooks(skeleton, plan)
    checkpoint = fetch_shards(plan.checkpoint)
    model = _read_weights(skeleton, config, plan, checkpoint.headers, progress)
    tokenizer = load_tokenizer(checkpoint.directory) if plan.checkpoint.has_tokenizer else None
    description = msgspec.structs.replace(plan.description, has_tokenizer=tokenizer is not None)
    return TransformersTarget(plan, model, tokenizer, description)


def _quieten() -> None:
    """Libraries' own progress bars and warnings stay out of the worker's log, which has its own."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()


def _build_config(plan: TargetPlan) -> Any:
    """The transformers config; ``auto_map``, which points at a repository's own code, is dropped."""
    raw = _without_code(plan.checkpoint.config)
    model_type = raw.get("model_type")
    if model_type not in CONFIG_MAPPING:
        raise TargetError(
            "target_unsupported",
            f"transformers {transformers.__version__} does not know model_type {model_type!r:.80}, and code from a "
            "checkpoint is never run; install a newer transformers or take another target.",
        )
    try:
        return CONFIG_MAPPING[model_type].from_dict(raw)
    except Exception as error:
        _log.warning("transformers refuses the config of %s", plan.checkpoint.shown, exc_info=error)
        raise TargetError(
            "target_invalid",
            f"transformers refuses config.json of {plan.checkpoint.shown} ({type(error).__name__}); "
            "copy the checkpoint anew.",
        ) from error


def _without_code(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _plain_floats(value) for key, value in config.items() if key != "auto_map"}


def _plain_floats(value: Any) -> Any:
    """Undoes how transformers writes infinities, which JSON lacks: ``{"__float__": "Infinity"}``."""
    if isinstance(value, dict):
        if value.keys() == {"__float__"} and value["__float__"] in {"Infinity", "-Infinity", "NaN"}:
            return float(value["__float__"])
        return {key: _plain_floats(item) for key, item in value.items()}
    return [_plain_floats(item) for item in value] if isinstance(value, list) else value


def _model_class(config: Any, shown: str) -> Any:
    if type(config) not in MODEL_MAPPING:
        raise TargetError(
            "target_unsupported",
            f"{shown} ({config.model_type}) is no language model; give a decoder-only one.",
        )
    found = MODEL_MAPPING[type(config)]
    return found[0] if isinstance(found, (list, tuple)) else found


def _build_skeleton(model_class: Any, config: Any, shown: str) -> Any:
    """The model without memory for its weights: enough to see its parts and the names of its parameters."""
    try:
        with torch.device("meta"):
            return model_class(config)
    except Exception as error:
        _log.warning("The model of %s can't be built", shown, exc_info=error)
        raise TargetError(
            "target_unsupported",
            f"transformers can't build the model of {shown} ({type(error).__name__}); "
            "check its config.json and that what its quantization needs is installed.",
        ) from error


def _check_hooks(skeleton: Any, plan: TargetPlan) -> None:
    """Finds what capture will hook onto before any weight is read."""
    text_model = text_model_of(skeleton)
    if plan.layout.source == "aux_layers":
        decoder_layers_of(text_model, plan.layout.num_layers)
    elif plan.layout.source == "pre_hc_head":
        stream_head_of(text_model)


def _read_weights(
    skeleton: Any, config: Any, plan: TargetPlan, headers: tuple[ShardHeader, ...], progress: ProgressCallback
) -> Any:
    counter = ByteCounter(sum(header.data_bytes for header in headers), progress)
    options: dict[str, Any] = {} if plan.device == "cpu" else {"device_map": {"": plan.device}}
    try:
        model, info = type(skeleton).from_pretrained(
            None,
            config=config,
            state_dict=_named_for(skeleton, open_shards([header.path for header in headers], counter)),
            dtype=getattr(torch, plan.dtype),
            output_loading_info=True,
            **options,
        )
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise _out_of_memory(plan) from error
    except Exception as error:
        if "can't allocate memory" in str(error):  # torch's CPU allocator raises a plain RuntimeError
            raise _out_of_memory(plan) from error
        _log.warning("The weights of %s can't be loaded", plan.checkpoint.shown, exc_info=error)
        raise TargetError(
            "target_invalid",
            f"The weights of {plan.checkpoint.shown} can't be loaded ({type(error).__name__}); "
            "copy the checkpoint anew.",
        ) from error
    _check_complete(plan.checkpoint.shown, info)
    counter.finish()
    model.eval()
    model.requires_grad_(requires_grad=False)
    return model


def _named_for(skeleton: Any, tensors: dict[str, CountedSlice]) -> dict[str, CountedSlice]:
    """Tensors of a causal language model under the names of its base model, where those exist.

    transformers does this itself, but after its per-architecture renaming, which then mistakes some names: 5.24 reads
    ``model.norm.weight`` of DeepSeek V4 as a compressor's norm and leaves the final norm uninitialised.
    """
    expected = frozenset(skeleton.state_dict())
    prefix = f"{skeleton.base_model_prefix}."
    return {
        stripped
        if (stripped := name.removeprefix(prefix)) in expected and stripped not in tensors
        else name: tensor
        for name, tensor in tensors.items()
    }


def _check_complete(shown: str, info: dict[str, Any]) -> None:
    """Refuses what transformers would fill with random numbers."""
    for kind in ("missing_keys", "mismatched_keys", "conversion_errors"):
        names = sorted(str(name) for name in info.get(kind) or ())
        if names:
            raise TargetError(
                "target_invalid",
                f"The weights of {shown} don't fit its config.json: {len(names)} {kind.replace('_', ' ')}, "
                f"{names[0]:.120} first; give a complete checkpoint.",
            )


def _out_of_memory(plan: TargetPlan) -> TargetError:
    return TargetError(
        "out_of_memory",
        f"{plan.device} ran out of memory while the {plan.weight_bytes} bytes of {plan.checkpoint.shown} were loaded; "
        "free some, set a smaller DTYPE or take a smaller target.",
    )
