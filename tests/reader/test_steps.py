import threading
import time

import pytest

from app.reader import ConnectionLostError, Region, StaleLeaseError


def test_the_newest_step_wins_and_gaps_are_counted(region, order, active, stub):
    with region.steps(timeout_s=10) as steps:
        order(region, "step 3")
        first = next(steps)
        assert first.missed == 2
        [lease] = first.leases
        assert lease.numpy().tobytes() == stub.rows_of(lease.token_ids, 16, "float32")
        lease.check()
        assert active(region) == 1
        order(region, "step 1")
        second = next(steps)
        assert (second.missed, second.step > first.step) == (0, True)
        with pytest.raises(StaleLeaseError, match="released"):
            lease.check()
        assert active(region) == 1
    assert active(region) == 0
    with pytest.raises(StopIteration):
        next(steps)


def test_waiting_for_a_step_times_out_and_goes_on(region, order):
    steps = region.steps(timeout_s=0.05)
    with pytest.raises(TimeoutError):
        next(steps)
    order(region, "step 1")
    assert next(steps).missed == 0


def test_a_step_keeps_its_stream_alive(region, order, active):
    steps = region.steps(timeout_s=10)
    order(region, "step 1")
    step = next(steps)
    del steps
    step.leases[0].check()
    del step
    order(region, "step 2")
    assert active(region) == 0


def test_steps_of_another_region_are_followed_across_threads(worker, region, order):
    seen = []

    def follow(follower):
        for step in follower.steps(timeout_s=30):
            step.leases[0].check()
            seen.append(1 + step.missed)
            if sum(seen) >= 20:
                return

    with Region.attach(worker.path) as follower:
        thread = threading.Thread(target=follow, args=(follower,))
        thread.start()
        until = time.monotonic() + 30
        while thread.is_alive() and time.monotonic() < until:
            order(region, "step 1")
        thread.join(1)
        assert not thread.is_alive()
    assert sum(seen) >= 20


def test_a_long_pause_costs_no_fresh_step(region, order):
    """What lay in the socket longer than a lease runs is renewed or dropped, never handed out stale."""
    with region.steps(lease_ttl_s=1, timeout_s=10) as steps:
        quiet = time.monotonic()
        order(region, "step 1")
        region.connection.quiet_at = quiet - 5  # as if nothing had been read for five seconds
        inbox = steps._inbox
        if inbox.newest is None:
            region.connection.run_until(lambda: inbox.newest is not None, _deadline())
            region.connection.quiet_at = quiet - 5
        leases = steps._leases_of(inbox.take())
        assert leases is not None
        leases[0].check()


def _deadline():
    from app.reader.deadline import Deadline

    return Deadline(10)


def test_a_dead_worker_ends_the_steps_with_an_error(worker, region):
    steps = region.steps()
    worker.kill()
    with pytest.raises(ConnectionLostError):
        next(steps)
    steps.close()


def test_closing_the_region_ends_the_steps_quietly(region):
    steps = region.steps()
    ends = []
    thread = threading.Thread(target=lambda: ends.append(list(steps)))
    thread.start()
    region.forward([[1]])
    region.close()
    thread.join(10)
    assert ends == [[]]
