"""Where the target runs, in what precision, and how much memory is free there."""

from __future__ import annotations

import platform
from pathlib import Path

from ..drafting.shapes import normalise_dtype
from ..transport.messages import DeviceInfo
from .target_error import TargetError

ELEMENT_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
_CGROUP = Path("/sys/fs/cgroup")


def resolve_dtype(wanted: str, of_config: str | None, of_weights: str | None) -> str:
    """The dtype of weights and rows: as wanted, for ``auto`` what the config says, else what most weights have.

    Raises:
        TargetError: ``dtype_unsupported``.
    """
    name = wanted.strip().lower().removeprefix("torch.")
    dtype = normalise_dtype(name)
    if dtype is None and name != "auto":
        raise _unsupported(wanted)
    if dtype is not None:
        if dtype not in ELEMENT_BYTES:
            raise _unsupported(wanted)
        return dtype
    for candidate in (of_config, of_weights):
        if candidate in ELEMENT_BYTES:
            return str(candidate)
    return "float32"


def _unsupported(wanted: str) -> TargetError:
    names = ", ".join(sorted(ELEMENT_BYTES))
    return TargetError(
        "dtype_unsupported", f"DTYPE {wanted!r:.40} is none of auto, {names}; set one of them."
    )


def resolve_device(wanted: str) -> str:
    """``cpu`` or ``cuda:N``; ``auto`` takes the first GPU where there is one.

    Raises:
        TargetError: ``device_unavailable``.
    """
    import torch  # noqa: PLC0415 - seconds of start-up, and not needed to refuse a config

    name = wanted.strip().lower()
    kind, _, ordinal = name.partition(":")
    if kind not in {"auto", "cpu", "cuda"} or (ordinal and (kind != "cuda" or not ordinal.isdigit())):
        raise TargetError(
            "device_unavailable", f"Device {wanted!r:.40} is none of auto, cpu, cuda; set one of them."
        )
    if kind == "cpu" or (kind == "auto" and not torch.cuda.is_available()):
        return "cpu"
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    index = int(ordinal or 0)
    if index >= count:
        raise TargetError(
            "device_unavailable",
            f"Device {name} is not there, this process sees {count} GPUs; set cpu or auto.",
        )
    return f"cuda:{index}"


def describe_device(device: str) -> DeviceInfo:
    """Type, UUID and name of a device."""
    if device == "cpu":
        return DeviceInfo(type="cpu", uuid=None, name=_cpu_name())
    import torch  # noqa: PLC0415 - seconds of start-up, and not needed on a CPU

    properties = torch.cuda.get_device_properties(torch.device(device))
    uuid = str(properties.uuid)
    return DeviceInfo(
        type="cuda", uuid=uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}", name=properties.name
    )


def free_bytes(device: str) -> int | None:
    """Memory that a new model could take on a device, ``None`` where that cannot be told.

    On a CPU the smaller of the machine's available memory and what the control group still allows.
    """
    if device != "cpu":
        import torch  # noqa: PLC0415 - seconds of start-up, and not needed on a CPU

        return int(torch.cuda.mem_get_info(torch.device(device))[0])
    limits = [value for value in (_available_bytes(), _cgroup_bytes()) if value is not None]
    return min(limits, default=None)


def _available_bytes() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _cgroup_bytes() -> int | None:
    """What a container's memory limit leaves (cgroup v2); file pages can be dropped, so they count as free."""
    try:
        limit = int((_CGROUP / "memory.max").read_text())
        used = int((_CGROUP / "memory.current").read_text())
        stat = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no cgroup v2 here, or no limit ("max")
        return None
    return max(0, limit - used + int(stat.get("inactive_file", 0)) + int(stat.get("active_file", 0)))


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.machine() or "cpu"
