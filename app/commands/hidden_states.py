"""``draftport hidden-states``: the reader at work."""

from __future__ import annotations

import sys
from typing import Any

from ..reader import Lease, Region
from ..settings import Settings
from ..transport.errors import TransportError
from .output import print_fields, print_json

SOUND, COULD_NOT_ANSWER = 0, 2


def run(prompts: list[str], *, socket: str | None, as_json: bool) -> int:
    """Prints shape, dtype and a summary of each prompt's rows; the exit status."""
    path = socket or str(Settings().socket_path)
    try:
        with Region.attach(path) as region:
            rows = [_summary(lease) for lease in region.forward(prompts=prompts)]
    except (TransportError, TimeoutError) as error:
        return _failed(getattr(error, "detail", None) or str(error))
    except ImportError:
        return _failed("PyTorch is needed to look at rows: install draftport[worker].")
    if as_json:
        print_json(rows)
    else:
        for row in rows:
            print_fields(row)
    return SOUND


def _failed(detail: str) -> int:
    sys.stderr.write(f"draftport: {detail}\n")
    return COULD_NOT_ANSWER


def _summary(lease: Lease) -> dict[str, Any]:
    with lease:
        values = lease.tensor().float()
        summary = {
            "shape": list(values.shape),
            "dtype": lease.dtype,
            "mean": round(values.mean().item(), 6),
            "std": round(values.std().item(), 6) if values.numel() > 1 else 0.0,
            "min": round(values.min().item(), 6),
            "max": round(values.max().item(), 6),
            "first_row": [round(value, 6) for value in values[0, :4].tolist()],
            "token_ids": lease.token_ids,
        }
        lease.check()
    return summary
