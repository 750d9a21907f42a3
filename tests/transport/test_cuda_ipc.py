"""What is decided about CUDA IPC without a GPU: a runtime that answers like CUDA's stands in for it."""

import ctypes
import os
import sys
import types
from enum import IntEnum

import pytest

from app.transport import cuda_ipc
from app.transport.errors import UnsupportedTransportError
from app.transport.region import CUDA_IPC_HANDLE_BYTES, RawHandle, RegionDescriptor, RegionDevice

UUID = bytes.fromhex("0123456789abcdef0123456789abcdef")
SHOWN = "GPU-01234567-89ab-cdef-0123-456789abcdef"


class Error(IntEnum):
    cudaSuccess = 0  # noqa: N815
    cudaErrorNoDevice = 100  # noqa: N815
    cudaErrorInvalidValue = 1  # noqa: N815


class Runtime:
    """As many devices as ``names``; ``supported`` is the attribute for IPC."""

    def __init__(self, names=(b"NVIDIA H200",), *, supported=1, error=Error.cudaSuccess):
        self.names = names
        self.supported = supported
        self.error = error
        self.cudaDeviceAttr = types.SimpleNamespace(cudaDevAttrIpcEventSupport=125)

    def cudaGetDeviceCount(self):  # noqa: N802
        return self.error, len(self.names)

    def cudaDeviceGetAttribute(self, attribute, ordinal):  # noqa: N802
        assert (attribute, ordinal < len(self.names)) == (125, True)
        return Error.cudaSuccess, self.supported

    def cudaGetDeviceProperties(self, ordinal):  # noqa: N802
        uuid = bytes([UUID[0] + ordinal]) + UUID[1:]
        return Error.cudaSuccess, types.SimpleNamespace(
            name=self.names[ordinal], uuid=types.SimpleNamespace(bytes=uuid)
        )


@pytest.fixture
def runtime(monkeypatch):
    """``runtime(...)`` puts a runtime where ``from cuda.bindings import runtime`` finds it."""

    def install(*arguments, **options):
        made = Runtime(*arguments, **options)
        bindings = types.ModuleType("cuda.bindings")
        bindings.runtime = made
        monkeypatch.setitem(sys.modules, "cuda", types.ModuleType("cuda"))
        monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
        return made

    return install


def test_a_plain_gpu_is_supported(runtime):
    runtime()
    assert cuda_ipc.probe_support() is None


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"names": ()}, "no CUDA device"),
        ({"error": Error.cudaErrorNoDevice}, "cudaErrorNoDevice"),
        ({"supported": 0}, "does not support CUDA IPC"),
        ({"names": (b"NVIDIA A100-SXM4-40GB MIG 1g.5gb",)}, "MIG"),
    ],
)
def test_what_cannot_work_is_said(runtime, options, reason):
    runtime(**options)
    assert reason in cuda_ipc.probe_support()


def test_one_usable_gpu_among_others_is_enough(runtime):
    runtime(names=(b"NVIDIA A100 MIG 1g.5gb", b"NVIDIA H200"))
    assert cuda_ipc.probe_support() is None


@pytest.mark.parametrize(
    ("release", "version", "reason"),
    [
        ("5.15.153.1-microsoft-standard-WSL2", "#1 SMP", "WSL"),
        ("4.4.0", "#1 SMP Sun Jan 10 15:06:54 PST 2016", "gVisor"),
    ],
)
def test_platforms_where_it_cannot_work(runtime, monkeypatch, release, version, reason):
    runtime()
    monkeypatch.setattr(os, "uname", lambda: types.SimpleNamespace(release=release, version=version))
    assert reason in cuda_ipc.probe_support()


def test_without_the_bindings(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda", None)
    assert "cuda-bindings is not installed" in cuda_ipc.probe_support()


@pytest.mark.parametrize("text", [SHOWN, SHOWN.upper(), UUID.hex(), f" {SHOWN} "])
def test_a_uuid_is_written_in_one_way(text):
    assert cuda_ipc.normalised_uuid(text) == SHOWN


@pytest.mark.parametrize("text", ["", "GPU-", "MIG-" + UUID.hex(), "GPU-" + "z" * 32, UUID.hex()[:-1]])
def test_what_is_no_uuid(text):
    with pytest.raises(ValueError, match="no GPU UUID"):
        cuda_ipc.normalised_uuid(text)


def test_the_gpu_is_found_by_uuid_not_by_ordinal(runtime):
    runtime(names=(b"a", b"b", b"c"))
    second = cuda_ipc.gpu_uuid(1)
    assert second != cuda_ipc.gpu_uuid(0) == SHOWN
    assert cuda_ipc._ordinal_of(second.upper()) == 1
    with pytest.raises(UnsupportedTransportError, match="give both containers the same GPU"):
        cuda_ipc._ordinal_of("GPU-" + "f" * 32)


def region(**changes):
    fields = {
        "format_version": 1, "epoch": "0" * 32, "kind": "cuda_ipc", "raw_handle": RawHandle.of(bytes(64)),
        "byte_size": 4 << 20, "base_offset": 0, "device": RegionDevice(uuid=SHOWN, ordinal=0), "slots": 2,
        "slot_bytes": 2 << 20, "rows_per_slot": 16, "row_bytes": 256, "dtype": "bfloat16", "width": 128,
        "control_byte_size": 4096, "exporter_pid": 1,
    }  # fmt: skip
    return RegionDescriptor(**(fields | changes))


def test_the_exporter_itself_is_told_what_shares_its_number(runtime):
    runtime()
    with pytest.raises(UnsupportedTransportError, match="shareProcessNamespace"):
        cuda_ipc.open_slab(region(exporter_pid=os.getpid()))


def test_opening_where_nothing_can_be_opened_says_why(runtime):
    runtime(names=())
    with pytest.raises(UnsupportedTransportError, match="no CUDA device"):
        cuda_ipc.open_slab(region())


def test_the_handles_bytes_travel_whole():
    data = bytes(range(64))
    assert RawHandle.of(data).to_bytes() == data
    target = ctypes.create_string_buffer(CUDA_IPC_HANDLE_BYTES)
    ctypes.memmove(ctypes.addressof(target), RawHandle.of(data).to_bytes(), CUDA_IPC_HANDLE_BYTES)
    assert target.raw == data
