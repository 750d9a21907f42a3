"""Errors of the transport, each with the stable ``code`` that REST uses for the same thing."""

from __future__ import annotations


class TransportError(Exception):
    """Base of everything this package raises on purpose."""

    code = "transport_error"


class FrameError(TransportError):
    """The peer sent bytes that are no frame: too long, or not the msgpack of a known message."""

    code = "malformed_frame"


class ConnectionLostError(TransportError):
    """The socket is closed; everything that this connection held is released."""

    code = "worker_unavailable"


class StaleLeaseError(TransportError):
    """The rows of a lease may have changed, so nothing read from them may be used.

    Raised when the worker is gone, its epoch changed, the slot was recycled or the lease ran out.
    """

    code = "lease_expired"


class UnsupportedTransportError(TransportError):
    """This process cannot map the worker's slab (no CUDA, another GPU, another operating system)."""

    code = "transport_unsupported"


class RemoteError(TransportError):
    """The worker answered a call with an error frame.

    Attributes:
        code: the stable code of the contract (``slab_full``, ``lease_not_found``, ...).
        detail: one sentence that says what to do.
        retry_after_s: seconds after which the same call may succeed, or ``None``.
        field: the offending field, e.g. ``prompt_token_ids.0``, or ``None``.
    """

    def __init__(
        self, code: str, detail: str, retry_after_s: float | None = None, field: str | None = None
    ) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail
        self.retry_after_s = retry_after_s
        self.field = field
