"""Which hidden states a drafter is fed: the target's wide residual where the model offers it, else its output.

Source: vLLM 0.32 and 0.33, ``vllm/v1/worker/gpu/spec_decode/utils.py``. Works on any tensor type that can be sliced.
"""

from __future__ import annotations

from typing import Any, TypeVar

_Tensor = TypeVar("_Tensor")


def get_drafter_hidden_states(model: object, hidden_states: _Tensor) -> _Tensor:
    """The rows that the drafter of ``model`` consumes for this step.

    Args:
        model: the target. If it has ``get_mtp_target_hidden_states`` and that returns a tensor (a buffer
            ``[max_num_batched_tokens, width]``), the buffer's rows of this step are the answer. The width and the
            dtype are the buffer's: models with several residual streams are wider than ``hidden_size``.
        hidden_states: ``[num_tokens, hidden_size]``, the target's output of this step.

    Returns:
        The buffer's first ``num_tokens`` rows, a *view* that the next forward overwrites; or ``hidden_states`` itself
        where the model has no such method (or ``None`` in its place) or the method returns ``None``.

    Raises:
        TypeError: ``get_mtp_target_hidden_states`` is something that can't be called.
    """
    hook: Any = getattr(model, "get_mtp_target_hidden_states", None)
    if hook is None:
        return hidden_states
    buffer = hook()
    if buffer is None:
        return hidden_states
    num_tokens = hidden_states.shape[0]  # type: ignore[attr-defined]  # any tensor type has a shape
    rows: _Tensor = buffer[:num_tokens]
    return rows
