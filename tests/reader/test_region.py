import functools
import json
import os
import socket
import sys
import threading
import time

import msgspec
import pytest
import torch

from app.reader import (
    ConnectionLostError,
    Region,
    RemoteError,
    StaleLeaseError,
    TransportError,
    UnsupportedTransportError,
)


def test_attach_describes_region_and_target(region, worker):
    assert region.descriptor.kind == "memfd"
    assert region.descriptor.exporter_pid == worker.process.pid
    assert region.target.hidden_states.width == 16


def test_attach_waits_for_a_worker_that_is_loading(start_stub):
    with Region.attach(start_stub(loading_answers=3).path) as region:
        assert region.forward([[1]])
    with pytest.raises(RemoteError, match="worker_unavailable"):
        Region.attach(start_stub(loading_answers=10**9).path, timeout_s=0.3)


def test_attach_waits_for_a_socket_and_says_when_none_came(tmp_path, start_stub):
    with pytest.raises(ConnectionLostError, match="no worker listens"):
        Region.attach(tmp_path / "nothing.sock", timeout_s=0.1)
    found = []
    path = tmp_path / "worker-0.sock"
    waiting = threading.Thread(target=lambda: found.append(Region.attach(path, timeout_s=30)))
    waiting.start()
    start_stub()
    waiting.join()
    found[0].close()


def test_attach_gives_up_on_a_peer_that_never_answers(tmp_path):
    path = str(tmp_path / "silent.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        with pytest.raises(TimeoutError):
            Region.attach(path, timeout_s=0.2)


@pytest.mark.parametrize(
    "options",
    [
        {"region_overrides": {"format_version": 2}},
        {"region_overrides": {"byte_size": 1 << 40}},
        {"region_overrides": {"slots": 7}},
        {"region_overrides": {"kind": "cuda_ipc"}},
        {"region_overrides": {"epoch": "x"}},
        {"epoch_on_page": "ab" * 16},
    ],
    ids=str,
)
def test_a_region_that_cannot_be_mapped_is_refused_without_a_leak(start_stub, descriptors, options):
    worker = start_stub(**options)
    before = descriptors()
    with pytest.raises(UnsupportedTransportError):
        Region.attach(worker.path)
    assert descriptors() == before


def test_other_systems_are_refused(worker, monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(UnsupportedTransportError, match="Linux"):
        Region.attach(worker.path)


def test_attaching_leaks_no_descriptor(worker, descriptors):
    before = descriptors()
    for _ in range(20):
        with Region.attach(worker.path) as region:
            region.forward([[1]])[0].tensor()
    assert descriptors() == before


@pytest.mark.parametrize("give", [lambda x: x, msgspec.json.encode, lambda x: x.lease_id])
def test_open_holds_what_another_region_leased(worker, active, stub, give):
    with Region.attach(worker.path) as one, Region.attach(worker.path) as two:
        [lease] = one.forward([[4, 5]])
        held = two.open(give(lease.descriptor), lease_ttl_s=20)
        lease.release()
        assert active(one) == 1
        assert held.numpy().tobytes() == stub.rows_of([4, 5], 16, "float32")
        held.check()
        held.release()
        assert active(one) == 0


def test_open_takes_the_json_of_the_rest_answer(region):
    [lease] = region.forward([[4, 5]])
    answer = json.loads(msgspec.json.encode(lease.descriptor))
    del answer["expires_in_s"]
    region.open(answer | {"added_later": 1}).check()
    with pytest.raises(ValueError, match="one by one"):
        region.open({"epoch": "", "leases": [answer]})
    with pytest.raises(ValueError, match="int"):
        region.open(5)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("slot", -1),
        ("slot", 2**70),
        ("slot", 1.5),
        ("byte_offset", -4),
        ("byte_offset", 2**80),
        ("byte_offset", 2),
        ("byte_size", 0),
        ("byte_size", 2**64),
        ("num_tokens", 65),
        ("num_tokens", -1),
        ("num_tokens", "2"),
        ("shape", [2, 17]),
        ("shape", []),
        ("dtype", "int64"),
        ("dtype", "object"),
        ("lease_id", None),
    ],
)
def test_open_refuses_hostile_json_before_anything_is_mapped(region, field, value):
    [lease] = region.forward([[4, 5]])
    answer = json.loads(msgspec.json.encode(lease.descriptor)) | {field: value}
    with pytest.raises(ValueError, match=r".+"):
        region.open(answer)
    region.open(lease.lease_id).check()


@pytest.mark.parametrize(
    ("field", "value"), [("slot", -1), ("byte_offset", 1 << 60), ("num_tokens", 9), ("shape", [1, 2])]
)
def test_an_impossible_lease_from_the_worker_is_never_mapped(region, active, field, value):
    with pytest.raises(TransportError, match="impossible lease"):
        region.forward(prompts=[f"bad {field} {json.dumps(value).replace(' ', '')}"])
    assert active(region) == 0


def test_a_description_of_other_rows_is_stale(region, active):
    one, two = region.forward([[1, 2], [3, 4]])
    mixed = msgspec.structs.replace(one.descriptor, byte_offset=two.descriptor.byte_offset)
    with pytest.raises(StaleLeaseError, match="not that of the worker"):
        region.open(mixed)
    with pytest.raises(RemoteError) as caught:
        region.open("f" * 32)
    assert caught.value.code == "lease_not_found"


def test_prompts_may_be_arrays_and_mistakes_are_named(region):
    leases = region.forward(torch.tensor([[1, 2], [3, 4]]))
    assert [lease.token_ids for lease in leases] == [[1, 2], [3, 4]]
    for wrong in ([1, 2, 3], ["text"], [[1.5]]):
        with pytest.raises(TypeError):
            region.forward(wrong)
    with pytest.raises(TypeError, match="exactly one"):
        region.forward()


def test_all_or_none(start_stub):
    with Region.attach(start_stub(slots=2).path) as region:
        kept = region.forward([[1]]) + region.forward([[2]])
        with pytest.raises(RemoteError) as caught:
            region.forward([[3]])
        assert (caught.value.code, caught.value.retry_after_s) == ("slab_full", 0.05)
        kept[0].release()
        assert region.forward([[3]])


def test_a_timeout_leaves_the_connection_in_order(region, order, active):
    for _ in range(3):
        with pytest.raises(TimeoutError):
            region.forward(prompts=["never"], timeout_s=0.02)
    [lease] = region.forward([[8, 9]])
    assert lease.token_ids == [8, 9]
    order(region, "flush")  # now the late answers come, each with a lease of its own
    assert active(region) == 1
    lease.check()


def test_threads_with_big_requests_and_big_answers_do_not_lock_up(region):
    """The worker stops reading while it cannot send: whoever sends has to read meanwhile."""
    big = [list(range(200)) * 100] * 30

    def work():
        for _ in range(5):
            with pytest.raises(RemoteError, match="prompt_too_long"):
                region.forward(big, timeout_s=60)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    assert not any(thread.is_alive() for thread in threads)
    assert region.forward([[1]])


def test_closing_forbids_new_tensors_and_keeps_the_old(worker, active):
    region = Region.attach(worker.path)
    [lease] = region.forward([[1, 2]])
    rows = lease.tensor()
    array = lease.numpy()
    region.close()
    region.close()
    assert rows[1, 0] == array[1, 0] == 2
    rows.zero_()
    for use in (lease.tensor, lease.numpy, lease.check, functools.partial(lease.renew, 5)):
        with pytest.raises(StaleLeaseError, match="closed"):
            use()
    with pytest.raises(ConnectionLostError, match="closed"):
        region.forward([[1]])
    lease.release()
    with Region.attach(worker.path) as other:
        until = time.monotonic() + 10
        while active(other) and time.monotonic() < until:
            pass
        assert active(other) == 0
    del lease, region
    assert rows.sum() == 0


def test_closing_wakes_a_thread_that_waits(region):
    ends = []

    def wait():
        try:
            region.forward(prompts=["never"])
        except ConnectionLostError as error:
            ends.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    region.forward([[1]])
    region.close()
    thread.join(10)
    assert not thread.is_alive()
    assert ends == ["the region was closed; attach again"]


def test_threads_share_one_region(region, stub):
    failures = []

    def work(seed):
        try:
            for i in range(100):
                ids = [(seed * 37 + i + j) % 90 for j in range(i % 5 + 1)]
                with region.forward([ids])[0] as lease:
                    assert lease.token_ids == ids
                    assert lease.numpy().tobytes() == stub.rows_of(ids, 16, "float32")
                    lease.check()
        except BaseException as error:  # noqa: BLE001 - told by the main thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert failures == []


def test_one_threads_wait_does_not_stop_another(region):
    def wait_in_vain():
        with pytest.raises(TimeoutError):
            region.forward(prompts=["never"], timeout_s=2)

    thread = threading.Thread(target=wait_in_vain)
    thread.start()
    started = time.monotonic()
    for i in range(50):
        region.forward([[i]])[0].release()
    assert thread.is_alive() or time.monotonic() - started > 1
    thread.join()


def in_child(check):
    """Runs ``check`` in a forked child; 0 when it returns."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            check()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_forked_child_is_told_and_the_parent_is_not_harmed(region, active):
    [lease] = region.forward([[1, 2]])
    rows = lease.tensor()

    def child():
        assert rows[1, 0] == 2
        for use in (lease.check, lease.tensor, lambda: lease.renew(5)):
            with pytest.raises(StaleLeaseError, match="fork"):
                use()
        with pytest.raises(ConnectionLostError, match="fork"):
            region.forward([[1]])
        lease.release()
        region.close()

    assert in_child(child) == 0
    lease.check()
    assert active(region) == 1
