"""Read drafter hidden states where the worker wrote them: ``Region`` and ``Lease``.

Importing this needs msgspec and the standard library only; PyTorch or NumPy is imported when a tensor is asked for.

    with Region.attach("/run/draftport/worker.sock") as region:
        [lease] = region.forward([[2, 818, 5279]])
        with lease:
            hidden = lease.tensor()
            ...
            lease.check()
"""

from ..transport.errors import (
    ConnectionLostError,
    RemoteError,
    StaleLeaseError,
    TransportError,
    UnsupportedTransportError,
)
from .lease import Lease
from .region import Region
from .steps import Step, StepStream

__all__ = [
    "ConnectionLostError",
    "Lease",
    "Region",
    "RemoteError",
    "StaleLeaseError",
    "Step",
    "StepStream",
    "TransportError",
    "UnsupportedTransportError",
]
