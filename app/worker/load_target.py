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
from .target import ProgressCallback, TargetPlan
from .target_error import TargetError
from .tokenize import load_tokenizer
from .weights_progress import ByteCounter, open_shards

_log = logging.getLogger(__name__)


def load_target(plan: TargetPlan, progress: ProgressCallback) -> TransformersTarget:
    """Builds the model's skeleton, checks that the layout can be hooked, then reads the weights.

    Raises:
        TargetError: ``target_unsupported``, ``layout_unsupported``, ``target_invalid``, ``out_of_memory``.
    """
    _quieten()
    config = _build_config(plan)
    model_class = _model_class(config, plan.checkpoint.shown)
    _check_hooks(model_class, config, plan)
    checkpoint = fetch_shards(plan.checkpoint)
    model = _read_weights(model_class, config, plan, checkpoint.headers, progress)
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
    return {key: value for key, value in config.items() if key != "auto_map"}


def _model_class(config: Any, shown: str) -> Any:
    if type(config) not in MODEL_MAPPING:
        raise TargetError(
            "target_unsupported",
            f"{shown} ({config.model_type}) is no language model; give a decoder-only one.",
        )
    found = MODEL_MAPPING[type(config)]
    return found[0] if isinstance(found, (list, tuple)) else found


def _check_hooks(model_class: Any, config: Any, plan: TargetPlan) -> None:
    """Builds the model without memory, to find what capture will hook onto before any weight is read."""
    try:
        with torch.device("meta"):
            skeleton = text_model_of(model_class(config))
    except Exception as error:
        _log.warning("The model of %s can't be built", plan.checkpoint.shown, exc_info=error)
        raise TargetError(
            "target_unsupported",
            f"transformers can't build the model of {plan.checkpoint.shown} ({type(error).__name__}); "
            "check its config.json and that what its quantization needs is installed.",
        ) from error
    if plan.layout.source == "aux_layers":
        decoder_layers_of(skeleton, plan.layout.num_layers)
    elif plan.layout.source == "pre_hc_head":
        stream_head_of(skeleton)


def _read_weights(
    model_class: Any, config: Any, plan: TargetPlan, headers: Any, progress: ProgressCallback
) -> Any:
    counter = ByteCounter(sum(header.data_bytes for header in headers), progress)
    options: dict[str, Any] = {} if plan.device == "cpu" else {"device_map": {"": plan.device}}
    try:
        model, info = model_class.from_pretrained(
            None,
            config=config,
            state_dict=open_shards([header.path for header in headers], counter),
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
