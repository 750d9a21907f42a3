"""Who may hold, renew and release, over real connections."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from service import wait_until
from worker_process import stats_of

from app.reader import RemoteError, StaleLeaseError
from app.transport import messages as wire

ROOT = Path(__file__).parents[3]


@pytest.fixture
def region(worker):
    with worker.attach() as attached:
        yield attached


def test_only_a_holder_renews_and_releases(worker, region):
    [lease] = region.forward([[1, 2, 3]])
    with worker.raw() as other:
        assert other.call(wire.Renew(id=1, lease_id=lease.lease_id)).code == "lease_not_found"
        assert other.call(wire.Release(id=2, lease_id=lease.lease_id)).released is False
        lease.check()
        held = other.call(wire.Hold(id=3, lease_id=lease.lease_id, lease_ttl_s=5))
        assert 4 < held.lease.expires_in_s <= 5
        assert other.call(wire.Renew(id=4, lease_id=lease.lease_id, lease_ttl_s=600)).lease.expires_in_s > 599
        assert other.call(wire.Release(id=5, lease_id=lease.lease_id)).released is True
        assert other.call(wire.Release(id=6, lease_id=lease.lease_id)).released is False
        assert other.call(wire.Renew(id=7, lease_id=lease.lease_id)).code == "lease_not_found"
    lease.check()
    lease.release()
    lease.release()


@pytest.mark.parametrize("lease_id", ["", "x", "0" * 32, "é" * 1000, "\0", "a" * 1_000_000])
def test_ids_that_nobody_has_ever_given(worker, lease_id):
    with worker.raw() as client:
        assert client.call(wire.Hold(id=1, lease_id=lease_id)).code == "lease_not_found"
        assert client.call(wire.Renew(id=2, lease_id=lease_id)).code == "lease_not_found"
        assert client.call(wire.Read(id=3, lease_id=lease_id)).code == "lease_not_found"
        assert client.call(wire.Release(id=4, lease_id=lease_id)).released is False


def test_a_released_lease_is_gone_for_everybody(worker, region):
    [lease] = region.forward([[1, 2, 3]])
    lease.release()
    with worker.raw() as client:
        wait_until(lambda: client.call(wire.Stats(id=1)).leases_active == 0, 10)
        assert client.call(wire.Hold(id=2, lease_id=lease.lease_id)).code == "lease_not_found"
        assert client.call(wire.Read(id=3, lease_id=lease.lease_id)).code == "lease_not_found"


OPEN = """
import sys
from app.reader import Region
with Region.attach(sys.argv[1]) as region:
    lease = region.open(sys.argv[2], lease_ttl_s=600)
    rows = lease.numpy()
    print("opened", flush=True)
    sys.stdin.readline()
    lease.check()
    print(rows.tobytes().hex(), flush=True)
"""


def test_a_lease_that_another_process_opened_outlives_the_first_holder(worker, region):
    [lease] = region.forward([[5, 6, 7]])
    expected = lease.tensor(copy=True).numpy().tobytes()
    reader = subprocess.Popen(
        [sys.executable, "-c", OPEN, str(worker.path), lease.lease_id],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    with reader:
        assert reader.stdout.readline() == "opened\n"
        lease.release()
        for _ in range(12):  # more than all slots: whatever can be recycled is
            for one in region.forward([[1] * 250]):
                one.release()
        reader.stdin.write("\n")
        reader.stdin.flush()
        assert bytes.fromhex(reader.stdout.readline().strip()) == expected
    assert reader.returncode == 0
    wait_until(lambda: stats_of(region).leases_active == 0, 10)


def test_a_lease_that_ran_out_is_stale_and_its_slot_free(worker, region):
    expired = stats_of(region).leases_expired
    [lease] = region.forward([[1, 2, 3]], lease_ttl_s=1)
    lease.check()
    with worker.raw() as keeper:
        keeper.call(wire.Hold(id=1, lease_id=lease.lease_id, lease_ttl_s=600))
        wait_until(lambda: stats_of(region).leases_expired == expired + 1, 10)
        with pytest.raises(StaleLeaseError):
            lease.check()
        with pytest.raises(StaleLeaseError):
            lease.renew()
        # It stands for those who still hold it, and may be opened again.
        assert keeper.call(wire.Renew(id=2, lease_id=lease.lease_id)).lease.num_tokens == 3
        region.open(lease.lease_id).release()
        assert keeper.call(wire.Release(id=3, lease_id=lease.lease_id)).released
    assert stats_of(region).slots_leased == 0
    with pytest.raises(RemoteError) as raised:
        region.open(lease.lease_id)
    assert raised.value.code == "lease_not_found"


def test_a_lease_that_nobody_kept_is_expired_without_anybody_asking(worker, region):
    [lease] = region.forward([[1, 2, 3]], lease_ttl_s=1)
    wait_until(lambda: stats_of(region).slots_leased == 0, 10)
    with pytest.raises(RemoteError) as raised:
        region.open(lease.lease_id)
    assert raised.value.code == "lease_expired"


def test_two_readers_behind_one_connection_release_each_their_own(region):
    [lease] = region.forward([[1, 2, 3]])
    again = region.open(lease.lease_id)
    again.release()
    assert stats_of(region).leases_active == 1
    lease.check()
    lease.renew()
    lease.release()
    assert stats_of(region).leases_active == 0


def test_following_steps_does_not_end_ones_own_leases(region):
    """The leases of a step are released with the next one; those of a forward are its caller's."""
    with region.steps(timeout_s=10) as steps:
        leases = [region.forward([[1, 2, i]], lease_ttl_s=600)[0] for i in range(4)]
        told = 0
        while told < 4:
            told += 1 + next(steps).missed
        assert told == 4
    assert stats_of(region).leases_active == 4
    for lease in leases:
        lease.check()
        lease.renew(600)
        lease.release()
    assert stats_of(region).leases_active == 0


def test_slab_full_says_when_to_try_again_and_goes_away(worker, region):
    leases = region.forward([[1] * 256] * 4, lease_ttl_s=600)
    with worker.raw() as other:
        reply = other.call(wire.Forward(id=1, prompt_token_ids=[[1]]))
        assert reply.code == "slab_full"
        assert 0 < reply.retry_after_s <= 1
        rejected = other.call(wire.Stats(id=2)).rejected
        assert rejected >= 1
        leases[2].release()
        wait_until(lambda: other.call(wire.Stats(id=3)).slots_leased == 3, 10)
        reply = other.call(wire.Forward(id=4, prompt_token_ids=[[1]]))
        assert reply.leases[0].slot == leases[2].descriptor.slot
        for lease in (leases[0], leases[1], leases[3]):
            lease.check()
        assert [lease.check() for lease in leases if not lease.released] == [None] * 3


def test_read_gives_the_rows_in_parts(worker, region):
    [lease] = region.forward([[3, 1, 4, 1, 5]])
    expected = lease.tensor(copy=True).numpy().tobytes()
    with worker.raw() as other:  # who knows the id may read, holding or not
        whole = other.call(wire.Read(id=1, lease_id=lease.lease_id))
        assert (whole.offset, whole.byte_size, whole.data) == (0, len(expected), expected)
        part = other.call(wire.Read(id=2, lease_id=lease.lease_id, offset=100, max_bytes=24))
        assert (part.offset, part.data) == (100, expected[100:124])
        beyond = other.call(wire.Read(id=3, lease_id=lease.lease_id, offset=2**62))
        assert (beyond.offset, beyond.data) == (len(expected), b"")


def test_a_forked_child_does_not_keep_leases_alive(worker, region):
    [lease] = region.forward([[1, 2, 3]], lease_ttl_s=600)
    child = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        region.close()
        until = time.monotonic() + 10
        with worker.raw() as other:
            while other.call(wire.Stats(id=1)).leases_active:
                assert time.monotonic() < until
    finally:
        child.kill()
        child.wait()
    assert lease.lease_id
