"""A slab in GPU memory, shared by a legacy CUDA IPC memory handle.

One ``cudaMalloc`` outside PyTorch's allocator, kept for the process's life: a handle always names a whole allocation, so
memory of the caching allocator would show its neighbours, and that allocator may use expandable segments, which have no
such handle. Freeing while a reader maps it is undefined behaviour (CUDA Runtime API, ``cudaIpcGetMemHandle``).

``cuda.bindings.runtime`` comes with PyTorch's CUDA build on Linux. Its calls return ``(error, values...)`` and raise
nothing where no driver is installed, unlike the driver bindings.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .errors import TransportError, UnsupportedTransportError
from .region import CUDA_IPC_HANDLE_BYTES, RawHandle, RegionDescriptor, RegionDevice

if TYPE_CHECKING:
    import torch

# gVisor answers uname as the Linux 4.4 it imitates (google/gvisor: pkg/sentry/syscalls/linux/linux64.go).
_GVISOR_KERNEL = "#1 SMP Sun Jan 10 15:06:54 PST 2016"


class CudaError(TransportError):
    """A CUDA call failed; the message has CUDA's own name for it."""

    code = "cuda_error"


def probe_support() -> str | None:
    """Why slabs cannot be shared between processes by CUDA IPC here, in a sentence; ``None`` when they can.

    Asks the platform and the runtime, and makes no CUDA context.
    """
    reason = _platform_reason()
    if reason is not None:
        return reason
    try:
        from cuda.bindings import runtime  # noqa: PLC0415 - only where a GPU is asked for
    except ImportError:
        return "cuda-bindings is not installed; PyTorch's CUDA build for Linux brings it"
    error, count = runtime.cudaGetDeviceCount()
    if int(error) or not count:
        name = error.name if int(error) else "no device"
        return f"no CUDA device can be used here ({name}): check the driver and the container's GPU settings"
    if all(_device_reason(runtime, ordinal) for ordinal in range(count)):
        return _device_reason(runtime, 0)
    return None


def gpu_uuid(ordinal: int) -> str:
    """The UUID of the device that this process counts as ``ordinal``, as ``GPU-xxxxxxxx-...``."""
    runtime = _runtime()
    properties = _checked(runtime.cudaGetDeviceProperties(ordinal))
    return normalised_uuid(bytes(properties.uuid.bytes).hex())


def normalised_uuid(text: str) -> str:
    """A GPU's UUID in lower case with NVIDIA's ``GPU-`` before it; ``ValueError`` for anything else."""
    digits = text.strip().removeprefix("GPU-").replace("-", "").lower()
    if len(digits) != 32 or not set(digits) <= set("0123456789abcdef"):
        raise ValueError(f"{text!r} is no GPU UUID")
    parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    return "GPU-" + "-".join(parts)


class CudaSlab:
    """The exporter's side.

    Attributes:
        byte_size: bytes of the allocation.
        device: the GPU, by UUID and this process's own ordinal.
        raw_handle: what readers open.

    Raises:
        UnsupportedTransportError: CUDA IPC cannot work here; the message says why.
        MemoryError: the device has too little free memory; both numbers are in the message.
    """

    def __init__(self, byte_size: int, ordinal: int = 0) -> None:
        _require_support(ordinal)
        runtime = _runtime()
        self.byte_size = byte_size
        self._ordinal = ordinal
        self.device = RegionDevice(uuid=gpu_uuid(ordinal), ordinal=ordinal)
        with _current_device(ordinal):
            free, _total = _checked(runtime.cudaMemGetInfo())
            if free < byte_size:
                raise MemoryError(f"the slab needs {byte_size} bytes of GPU memory and {free} are free")
            self._address = int(_checked(runtime.cudaMalloc(byte_size)))
            # What this process had there before is nobody else's business.
            _checked(runtime.cudaMemset(self._address, 0, byte_size))
            _checked(runtime.cudaDeviceSynchronize())
            handle = _checked(runtime.cudaIpcGetMemHandle(self._address))
        # The struct's attribute for its bytes was removed in cuda-bindings 13.4; its address is there in all versions.
        self.raw_handle = RawHandle.of(ctypes.string_at(handle.getPtr(), CUDA_IPC_HANDLE_BYTES))

    def view(self, byte_offset: int, byte_size: int) -> torch.Tensor:
        """A range of the slab as a flat uint8 tensor; ``.view(dtype)`` makes bfloat16 or float8 of it."""
        return _view(self, self._ordinal, self._address, byte_offset, byte_size)

    def record(self, stream: torch.cuda.Stream | None = None) -> Completion:
        """Marks the work queued on ``stream`` so far (``None``: the current one); call on the model's thread."""
        import torch  # noqa: PLC0415 - lazily

        with torch.cuda.device(self._ordinal):
            event = torch.cuda.Event(blocking=True)
            event.record(stream if stream is not None else torch.cuda.current_stream())
        return Completion(event)


class Completion:
    """Work that was queued on a stream and may still run."""

    def __init__(self, event: torch.cuda.Event) -> None:
        self._event = event

    def wait(self) -> None:
        """Sleeps until the work is done, without the GIL; call off the model's thread, before publishing."""
        self._event.synchronize()

    def done(self) -> bool:
        """Whether the work is done, without waiting."""
        return bool(self._event.query())


class OpenedSlab:
    """A reader's side: the worker's allocation in this process, closed when its last tensor is gone."""

    def __init__(self, region: RegionDescriptor, ordinal: int) -> None:
        runtime = _runtime()
        raw_handle = region.raw_handle
        if raw_handle is None:
            raise UnsupportedTransportError("the region has no CUDA IPC handle")
        handle = runtime.cudaIpcMemHandle_t()
        ctypes.memmove(handle.getPtr(), raw_handle.to_bytes(), CUDA_IPC_HANDLE_BYTES)
        with _current_device(ordinal):
            flags = runtime.cudaIpcMemLazyEnablePeerAccess
            error, address = runtime.cudaIpcOpenMemHandle(handle, flags)
            if int(error):
                raise UnsupportedTransportError(_why_not_opened(error))
        self._ordinal = ordinal
        self._address = int(address)
        self._byte_size = region.byte_size
        weakref.finalize(self, _close_handle, self._address, ordinal).atexit = False

    def view(self, byte_offset: int, byte_size: int) -> torch.Tensor:
        """A range of the slab as a flat uint8 tensor, without a copy. It is writable; do not write."""
        if byte_offset + byte_size > self._byte_size:
            raise ValueError("the range reaches beyond the slab")
        return _view(self, self._ordinal, self._address, byte_offset, byte_size)

    def synchronize(self, stream: torch.cuda.Stream | None) -> None:
        """Waits for the work queued on ``stream``, or on the slab's device's current one."""
        import torch  # noqa: PLC0415 - lazily

        (stream if stream is not None else torch.cuda.current_stream(self._ordinal)).synchronize()

    def synchronize_device(self) -> None:
        """Waits for all work queued on the slab's device."""
        import torch  # noqa: PLC0415 - lazily

        torch.cuda.synchronize(self._ordinal)


_opening = threading.Lock()
_opened: weakref.WeakValueDictionary[str, OpenedSlab] = weakref.WeakValueDictionary()


def open_slab(region: RegionDescriptor) -> OpenedSlab:
    """Opens a worker's slab, once per process and epoch.

    The cache goes by epoch: drivers have given byte-identical handles to different allocations.

    Raises:
        UnsupportedTransportError: another GPU, the worker's own process, or no CUDA IPC here; the message says which.
    """
    if region.exporter_pid == os.getpid():
        raise UnsupportedTransportError(
            "the worker has this process's number: CUDA IPC works between processes only, and two containers count "
            "apart only with a shared process namespace (shareProcessNamespace: true)"
        )
    reason = probe_support()
    if reason is not None:
        raise UnsupportedTransportError(reason)
    ordinal = _ordinal_of(region.device.uuid)
    _require_support(ordinal)
    with _opening:
        slab = _opened.get(region.epoch)
        if slab is None:
            slab = _opened[region.epoch] = OpenedSlab(region, ordinal)
        return slab


class _DeviceRange:
    """What ``torch.as_tensor`` reads, and what the tensor keeps alive: the range and whoever owns it."""

    def __init__(self, owner: object, address: int, byte_size: int) -> None:
        self.owner = owner
        self.__cuda_array_interface__ = {
            "shape": (byte_size,),
            "typestr": "|u1",  # the interface has neither bfloat16 nor float8
            "data": (address, False),
            "strides": None,
            "version": 3,
        }


def _view(owner: object, ordinal: int, address: int, byte_offset: int, byte_size: int) -> torch.Tensor:
    import torch  # noqa: PLC0415 - lazily

    if not byte_size:
        return torch.empty(0, dtype=torch.uint8, device=f"cuda:{ordinal}")
    return torch.as_tensor(_DeviceRange(owner, address + byte_offset, byte_size), device=f"cuda:{ordinal}")


def _platform_reason() -> str | None:
    if sys.platform != "linux":
        return "CUDA IPC memory handles are shared on Linux only"
    kernel = os.uname()
    if "microsoft" in kernel.release.lower():
        return "CUDA IPC does not work under WSL"
    if kernel.version == _GVISOR_KERNEL:
        return "CUDA IPC is not known to work under gVisor; use another runtime class for this pod"
    return None


def _device_reason(runtime: Any, ordinal: int) -> str | None:
    attribute = runtime.cudaDeviceAttr.cudaDevAttrIpcEventSupport
    error, supported = runtime.cudaDeviceGetAttribute(attribute, ordinal)
    if int(error):
        return f"the GPU cannot be asked for its abilities ({error.name})"
    if not supported:
        return "the GPU does not support CUDA IPC"
    error, properties = runtime.cudaGetDeviceProperties(ordinal)
    if int(error):
        return f"the GPU cannot be asked for its properties ({error.name})"
    if b" MIG " in bytes(properties.name) + b" ":
        return "the GPU is a MIG slice, between which CUDA IPC does not work; use a whole GPU"
    return None


def _require_support(ordinal: int) -> None:
    reason = probe_support() or _device_reason(_runtime(), ordinal)
    if reason is not None:
        raise UnsupportedTransportError(reason)
    import torch  # noqa: PLC0415 - lazily

    if not torch.backends.cuda.is_built():
        raise UnsupportedTransportError("this PyTorch is built without CUDA; install its CUDA build")


def _ordinal_of(uuid: str | None) -> int:
    """The local ordinal of a GPU: ordinals differ between containers, UUIDs do not."""
    count = _checked(_runtime().cudaGetDeviceCount())
    here = [gpu_uuid(ordinal) for ordinal in range(count)]
    wanted = normalised_uuid(uuid or "")
    if wanted not in here:
        raise UnsupportedTransportError(
            f"the rows are on {wanted} and this process sees {', '.join(here)}: give both containers the same GPU"
        )
    return here.index(wanted)


def _why_not_opened(error: Any) -> str:
    if error.name in {"cudaErrorDeviceUninitialized", "cudaErrorInvalidContext"}:
        return (
            f"the driver takes this process for the worker's own ({error.name}): "
            "share the pod's process namespace (shareProcessNamespace: true)"
        )
    return f"the GPU slab could not be opened ({error.name}); is its worker still running?"


def _close_handle(address: int, ordinal: int) -> None:
    """Closes one open; an error is of no use to anybody at that point."""
    with contextlib.suppress(Exception), _current_device(ordinal):
        _runtime().cudaIpcCloseMemHandle(address)


@contextlib.contextmanager
def _current_device(ordinal: int) -> Iterator[None]:
    """Makes a device current. PyTorch restores the one before without making a context there."""
    import torch  # noqa: PLC0415 - lazily

    with torch.cuda.device(ordinal):
        _checked(_runtime().cudaSetDevice(ordinal))
        yield


def _runtime() -> Any:
    from cuda.bindings import runtime  # noqa: PLC0415 - lazily

    return runtime


def _checked(result: tuple[Any, ...]) -> Any:
    """The values of a runtime call, or ``CudaError``."""
    error, *values = result
    if int(error):
        raise CudaError(f"CUDA call failed with {error.name}")
    return values[0] if len(values) == 1 else tuple(values)
