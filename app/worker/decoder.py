"""Finds the parts of a transformers model that capture hooks onto: the text model, its decoder layers, its stream head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .target_error import TargetError

if TYPE_CHECKING:
    from torch import nn

# The module that joins the parallel residual streams into one: DeepSeek V4's hc_head, Qwen4-exp's mixer.
_STREAM_HEADS = ("hc_head", "hyper_connection_mixer")
# Names of towers that are no text model and may have as many layers.
_OTHER_TOWERS = ("vision", "visual", "audio", "speech", "image", "video", "mtp")


def text_model_of(model: Any) -> Any:
    """The decoder-only text model inside whatever ``AutoModel`` built: itself, or a multimodal wrapper's part."""
    seen: set[int] = set()
    while id(model) not in seen:
        seen.add(id(model))
        model = model.get_decoder() if hasattr(model, "get_decoder") else model
    return model


def decoder_layers_of(model: nn.Module, num_layers: int) -> nn.ModuleList:
    """The list of decoder layers: the shallowest ``ModuleList`` of the right length that is in no other tower.

    Raises:
        TargetError: ``layout_unsupported``.
    """
    from torch import nn  # noqa: PLC0415 - seconds of start-up

    found = [
        (name.count("."), name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList)
        and len(module) == num_layers
        and not any(tower in name for tower in _OTHER_TOWERS)
    ]
    if not found:
        raise TargetError(
            "layout_unsupported",
            f"No list of {num_layers} decoder layers was found in {type(model).__name__}; set CAPTURE=final.",
        )
    depth = min(entry[0] for entry in found)
    nearest = [entry for entry in found if entry[0] == depth]
    named = [entry for entry in nearest if entry[1].rpartition(".")[2] in {"layers", "h", "blocks"}]
    layers: nn.ModuleList = (named or nearest)[0][2]
    return layers


def stream_head_of(model: nn.Module) -> nn.Module:
    """The module whose input is the whole set of residual streams.

    Raises:
        TargetError: ``layout_unsupported``.
    """
    for name in _STREAM_HEADS:
        head = getattr(model, name, None)
        if head is not None:
            found: nn.Module = head
            return found
    raise TargetError(
        "layout_unsupported",
        f"{type(model).__name__} has no hc_head, so there is no state before it; set CAPTURE=final or aux_layers.",
    )
