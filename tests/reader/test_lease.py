import time

import numpy as np
import pytest
import torch

from app.reader import Region, StaleLeaseError

DTYPES = ["float32", "float16", "bfloat16", "float64", "float8_e4m3fn", "float8_e5m2"]


def expected(stub, lease, dtype):
    raw = bytearray(stub.rows_of(lease.token_ids, 16, dtype))
    return torch.frombuffer(raw, dtype=getattr(torch, dtype)).view(-1, 16)


def bits(tensor):
    return tensor.contiguous().view(torch.uint8)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_the_workers_bit_for_bit(start_stub, stub, dtype):
    with Region.attach(start_stub(dtype=dtype).path) as region:
        assert region.target.model == "stub"
        leases = region.forward([[1, 2, 3], [], [100], list(range(50))])
        assert [lease.shape for lease in leases] == [(3, 16), (0, 16), (1, 16), (50, 16)]
        for lease in leases:
            rows = lease.tensor()
            assert (rows.dtype, tuple(rows.shape)) == (getattr(torch, dtype), lease.shape)
            copied = lease.tensor(copy=True)
            lease.check()
            for tensor in (rows, copied):
                if lease.num_tokens:
                    assert torch.equal(bits(tensor), bits(expected(stub, lease, dtype)))


def test_numpy_arrays_are_read_only_views(region, stub):
    full, none = region.forward([[5, 6], []])
    rows = full.numpy()
    assert (rows.dtype, rows.shape) == (np.float32, (2, 16))
    assert rows.tobytes() == stub.rows_of([5, 6], 16, "float32")
    with pytest.raises(ValueError, match="read-only"):
        rows[0, 0] = 1
    assert none.numpy().shape == (0, 16)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
def test_numpy_refuses_dtypes_it_lacks_with_advice(start_stub, dtype):
    with Region.attach(start_stub(dtype=dtype).path) as region:
        [lease] = region.forward([[1]])
        with pytest.raises(TypeError, match=r"use lease\.tensor\(\)"):
            lease.numpy()


def test_a_slip_in_place_stays_in_its_tensor(region, stub):
    one, two = region.forward([[1, 2], [3]])
    with Region.attach(region_path(region)) as other:
        same = other.open(one.lease_id)
        wrong = one.tensor()
        wrong.zero_()
        wrong.add_(7)
        for lease, ids in ((one, [1, 2]), (two, [3]), (same, [1, 2])):
            assert lease.numpy().tobytes() == stub.rows_of(ids, 16, "float32")
            lease.check()


def region_path(region):
    return region.connection._sock.getpeername()


def test_tensors_see_the_slab_without_a_copy(region, order):
    [lease] = region.forward([[1]])
    rows = lease.tensor()
    private = lease.tensor(copy=True)
    order(region, "recycle")
    assert rows[0, 0] == 99
    assert private[0, 0] == 1


def test_a_recycled_slot_is_stale(region, order):
    [lease] = region.forward([[1, 2]])
    lease.check()
    order(region, "recycle")
    for use in (lease.check, lease.tensor, lease.numpy, lambda: lease.tensor(copy=True)):
        with pytest.raises(StaleLeaseError, match="recycled"):
            use()


def test_a_new_epoch_is_stale(region, order):
    [lease] = region.forward([[1]])
    order(region, "newepoch")
    with pytest.raises(StaleLeaseError, match="anew"):
        lease.check()


def repeat_until(deadline, use):
    while time.monotonic() < deadline:
        use()


def test_a_lease_that_ran_out_is_stale_although_its_rows_are_still_there(region):
    asked_at = time.monotonic()
    [lease] = region.forward([[1]], lease_ttl_s=1)
    assert lease.deadline <= time.monotonic() + 1
    assert lease.deadline >= asked_at + 1
    lease.check()
    until = time.monotonic() + 10
    with pytest.raises(StaleLeaseError, match="ran out"):
        repeat_until(until, lease.check)
    with pytest.raises(StaleLeaseError):
        repeat_until(until, lambda: lease.renew(30))  # the worker counts from a little later


def test_renewing_moves_the_deadline(region):
    [lease] = region.forward([[1]], lease_ttl_s=1)
    lease.renew(60)
    assert lease.deadline > time.monotonic() + 50
    lease.check()


def test_release_frees_the_slot_and_ends_the_lease(region, active):
    with region.forward([[1]])[0] as lease:
        rows = lease.tensor()
        assert active(region) == 1
    assert active(region) == 0
    lease.release()
    assert rows.shape == (1, 16)
    for use in (lease.check, lease.tensor, lambda: lease.renew(5)):
        with pytest.raises(StaleLeaseError, match="released"):
            use()


def test_two_thousand_live_tensors_take_no_descriptors(region, descriptors):
    [lease] = region.forward([[1, 2, 3]])
    lease.tensor()
    before = descriptors()
    tensors = [lease.tensor() for _ in range(2000)]
    assert descriptors() == before
    assert all(tensor[2, 0] == 3 for tensor in tensors[::100])
    del tensors
    assert descriptors() == before
