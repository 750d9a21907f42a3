"""The slab for a target, refused where slab and weights together do not fit."""

from __future__ import annotations

from ..export.slab import Slab
from ..transport.region import slot_bytes_for
from .device import free_bytes
from .target import TargetPlan
from .target_error import TargetError


def make_slab(plan: TargetPlan, slots: int, epoch: str) -> Slab:
    """Slots of ``max_num_batched_tokens`` rows each, made before the weights are read.

    Raises:
        TargetError: ``out_of_memory``: slab and weights together do not fit; both numbers are in the sentence.
    """
    rows = plan.description.max_num_batched_tokens
    _check_room(plan, slots * slot_bytes_for(rows, plan.row_bytes))
    try:
        return Slab(
            slots=slots,
            rows_per_slot=rows,
            width=plan.width,
            dtype=plan.dtype,
            device=plan.device,
            epoch=epoch,
        )
    except MemoryError as error:
        raise TargetError("out_of_memory", f"{error}; lower SLOTS or MAX_NUM_BATCHED_TOKENS.") from error


def _check_room(plan: TargetPlan, byte_size: int) -> None:
    free = free_bytes(plan.device)
    if free is not None and byte_size + plan.weight_bytes > free:
        raise TargetError(
            "out_of_memory",
            f"The slab of {byte_size} bytes and the weights of {plan.weight_bytes} bytes do not fit into the "
            f"{free} bytes free on {plan.device}; lower SLOTS or MAX_NUM_BATCHED_TOKENS, or take a smaller target.",
        )
