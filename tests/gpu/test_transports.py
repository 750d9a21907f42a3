"""What both transports promise, each body run over memfd and, where there is a GPU, over CUDA IPC."""

import hashlib

import msgspec
import pytest

from app.reader import Region
from app.reader.deadline import Deadline
from app.transport import messages as wire

KIND = {"cpu": "memfd", "cuda": "cuda_ipc"}
PUBLISHES = 200


def described(lease):
    return msgspec.json.encode(lease.descriptor).decode()


def worker_bytes(region, lease):
    """The rows as the worker itself reads them (call ``read``)."""
    data = b""
    while len(data) < lease.descriptor.byte_size:
        request = wire.Read(id=0, lease_id=lease.lease_id, offset=len(data))
        data += region.connection.call(request, wire.ReadReply, Deadline(30)).data
    return data


def active(region):
    return region.connection.call(wire.Stats(id=0), wire.StatsReply, Deadline(30)).leases_active


def test_another_process_sees_the_workers_bytes(device, start_worker, start_reader):
    worker = start_worker()
    reader = start_reader(worker)
    assert reader.ask("attach")["kind"] == KIND[device]
    with Region.attach(worker.socket_path) as region:
        for length in (1, 3, 200):
            [lease] = region.forward([[11] * length])
            seen = reader.ask("digest", lease=described(lease))
            assert seen["sha256"] == hashlib.sha256(worker_bytes(region, lease)).hexdigest()
            assert seen["device"] == device
            lease.release()


def test_two_hundred_publishes_without_a_stale_or_wrong_read(start_worker, start_reader):
    worker = start_worker(slots=2)
    reader = start_reader(worker)
    reader.ask("attach")
    answer = reader.ask("publish", count=PUBLISHES)
    assert (answer["wrong"], answer["stale"]) == (None, 0)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_dtypes(start_worker, start_reader, dtype):
    worker = start_worker(dtype=dtype)
    reader = start_reader(worker)
    reader.ask("attach")
    with Region.attach(worker.socket_path) as region:
        [lease] = region.forward([[3] * 40])
        assert reader.ask("digest", lease=described(lease))["dtype"] == f"torch.{dtype}"
        views = reader.ask("views", lease=described(lease))
    assert views["fp8_bytes_equal"]
    assert views["bf16_equal"] is (dtype == "bfloat16")


def test_a_killed_reader_frees_what_it_held_and_harms_nobody(start_worker, start_reader, until):
    worker = start_worker()
    other = start_reader(worker)
    other.ask("attach")
    with Region.attach(worker.socket_path) as region:
        for _ in range(5):
            doomed = start_reader(worker)
            doomed.ask("attach")
            doomed.ask("hold", prompts=[[1, 2, 3]] * 3)
            assert active(region) == 3
            doomed.process.kill()
            until(lambda: active(region) == 0, 5)
        assert other.ask("publish", count=20)["wrong"] is None


def test_a_killed_workers_leases_are_stale_and_the_next_one_is_mapped_anew(start_worker, start_reader, until):
    worker = start_worker()
    reader = start_reader(worker)
    reader.ask("attach")
    reader.ask("hold", prompts=[[1, 2, 3]])
    assert reader.ask("is_stale") == {"stale": False}
    worker.kill()
    until(lambda: reader.ask("is_stale")["stale"], 5)
    fresh = start_worker()
    again = start_reader(fresh)
    again.ask("attach")
    assert again.ask("publish", count=20)["wrong"] is None


def test_figures(device, start_worker, start_reader, capsys):
    worker = start_worker()
    reader = start_reader(worker)
    opened = reader.ask("attach")
    published = reader.ask("publish", count=PUBLISHES)
    speed = reader.ask("bandwidth")
    with capsys.disabled():
        print(f"\n{KIND[device]:9} attach {opened['attach_ms']:.2f} ms, open {opened['open_ms']:.3f} ms once, "
              f"prompt to tensor {published['publish_ms']:.2f} ms, mapped {speed['mapped_gb_s']:.1f} GB/s, "
              f"local {speed['local_gb_s']:.1f} GB/s over {speed['bytes'] / 2**20:.1f} MiB")  # fmt: skip
    assert speed["mapped_gb_s"] > 0
