"""The ledger under any sequence of calls: what readers may rely on holds after each of them."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from app.export.call_error import CallError
from app.export.leases import Ledger

SLOTS, ROWS = 3, 8
HOLDERS = st.sampled_from(["a", "b", "c"])
TTLS = st.sampled_from([1.0, 2.5, 30.0, 600.0])


class Page:
    """Remembers what readers would see."""

    def __init__(self):
        self.sequences = {}
        self.steps = {}

    def set_sequence(self, slot, sequence):
        self.sequences[slot] = sequence

    def set_step(self, slot, *, step, rows):
        self.steps[slot] = (step, rows)


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def new_ledger(slots=SLOTS, rows=ROWS):
    clock, page = Clock(), Page()
    return Ledger(slots, rows, page, clock), page, clock


def filled(ledger, *lengths, holder="a", ttl_s=30.0, step=1):
    """Leases of prompts of these lengths, as the engine makes them."""
    placements = ledger.reserve(list(lengths))
    ledger.written(placements, step)
    leases = [
        ledger.publish(one, [0] * one.num_tokens, index=index, holder=holder, ttl_s=ttl_s)
        for index, one in enumerate(placements)
    ]
    ledger.settle(placements)
    return leases


def is_valid(lease, page):
    """What a reader checks."""
    return page.sequences[lease.placement.slot] == lease.placement.sequence


class LedgerMachine(RuleBasedStateMachine):
    """Keeps its own, simpler record of who holds what: ``(lease_id, holder) -> [deadline, times, firm]``."""

    def __init__(self):
        super().__init__()
        self.ledger, self.page, self.clock = new_ledger()
        self.reserved = []  # placements that the model has not written yet
        self.leases = {}  # every lease ever published
        self.holds = {}
        self.lapsed = set()
        self.step = 0

    def alive(self, lease_id):
        return any(held == lease_id for held, _ in self.holds)

    def expire(self):
        for key, (deadline, _times, _firm) in list(self.holds.items()):
            if self.clock.now >= deadline:
                self.lose(key)

    def lose(self, key):
        del self.holds[key]
        self.lapsed.add(key)

    def take(self, lease_id, holder, ttl_s, firm=True):
        hold = self.holds.setdefault((lease_id, holder), [0.0, 0, False])
        hold[0] = max(hold[0], self.clock.now + ttl_s)
        hold[1] += 1
        hold[2] = hold[2] or firm
        self.lapsed.discard((lease_id, holder))

    @rule(lengths=st.lists(st.integers(1, ROWS), min_size=1, max_size=4))
    def reserve(self, lengths):
        before = dict(self.page.sequences)
        self.expire()
        try:
            placements = self.ledger.reserve(lengths)
        except CallError as error:
            refused = error
        else:
            refused = None
        if refused is not None:
            assert refused.code in ("slab_full", "prompts_exceed_slab")
            if refused.code == "slab_full":
                assert 0 < refused.retry_after_s <= 1
                assert self.holds or self.reserved
            assert self.page.sequences == before
            return
        assert [one.num_tokens for one in placements] == lengths
        self.reserved.append(placements)
        recycled = {slot for slot, sequence in self.page.sequences.items() if sequence != before[slot]}
        for slot in recycled:
            assert before[slot] % 2 == 0
            assert self.page.sequences[slot] == before[slot] + 1  # odd before the first write
        for lease_id, lease in self.leases.items():
            if not self.alive(lease_id):
                continue
            if any(
                one.slot == lease.placement.slot and one.sequence != lease.placement.sequence
                for one in placements
            ):
                keys = [key for key in self.holds if key[0] == lease_id]
                assert not any(self.holds[key][2] for key in keys), (
                    "a slot was recycled that somebody asked to hold"
                )
                for key in keys:
                    self.lose(key)

    @precondition(lambda self: self.reserved)
    @rule(data=st.data(), holder=HOLDERS, ttl_s=TTLS, given_up=st.booleans())
    def finish(self, data, holder, ttl_s, given_up):
        placements = self.reserved.pop(data.draw(st.integers(0, len(self.reserved) - 1)))
        self.step += 1
        self.ledger.written(placements, self.step)
        for one in placements:
            assert self.page.sequences[one.slot] == one.sequence
            assert self.page.sequences[one.slot] % 2 == 0
            assert self.page.steps[one.slot][0] == self.step
        if not given_up:
            for index, one in enumerate(placements):
                lease = self.ledger.publish(
                    one, [7] * one.num_tokens, index=index, holder=holder, ttl_s=ttl_s
                )
                assert lease.lease_id not in self.leases
                self.leases[lease.lease_id] = lease
                self.take(lease.lease_id, holder, ttl_s)
        self.ledger.settle(placements)

    def some_lease(self, data):
        return list(self.leases)[
            data.draw(st.integers(0, len(self.leases) - 1))
        ]  # ids are random, places are not

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), holder=HOLDERS, ttl_s=TTLS)
    def hold(self, data, holder, ttl_s):
        lease_id = self.some_lease(data)
        self.expire()
        if self.alive(lease_id):
            self.ledger.hold(lease_id, holder, ttl_s)
            self.take(lease_id, holder, ttl_s)
        else:
            with pytest.raises(CallError) as raised:
                self.ledger.hold(lease_id, holder, ttl_s)
            assert raised.value.code in ("lease_expired", "lease_not_found")

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), holder=HOLDERS, ttl_s=TTLS)
    def follow(self, data, holder, ttl_s):
        lease_id = self.some_lease(data)
        self.expire()
        self.ledger.expire()
        if self.alive(lease_id):
            self.ledger.follow(self.leases[lease_id], holder, ttl_s)
            self.take(lease_id, holder, ttl_s, firm=False)

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), holder=HOLDERS, ttl_s=TTLS)
    def renew(self, data, holder, ttl_s):
        lease_id = self.some_lease(data)
        self.expire()
        key = (lease_id, holder)
        if key in self.holds:
            self.ledger.renew(lease_id, holder, ttl_s)
            self.holds[key][0] = self.clock.now + ttl_s
            self.holds[key][2] = True
            return
        with pytest.raises(CallError) as raised:
            self.ledger.renew(lease_id, holder, ttl_s)
        if self.alive(lease_id):
            assert raised.value.code == ("lease_expired" if key in self.lapsed else "lease_not_found")

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), holder=HOLDERS)
    def release(self, data, holder):
        lease_id = self.some_lease(data)
        key = (lease_id, holder)
        assert self.ledger.release(lease_id, holder) == (key in self.holds)
        if key in self.holds:
            self.holds[key][1] -= 1
            if not self.holds[key][1]:
                del self.holds[key]

    @rule(holder=HOLDERS)
    def leave(self, holder):
        self.ledger.leave(holder)
        self.holds = {key: hold for key, hold in self.holds.items() if key[1] != holder}
        self.lapsed = {key for key in self.lapsed if key[1] != holder}
        assert self.ledger.held_by(holder) == 0

    @rule(seconds=st.sampled_from([0.5, 1.0, 3.0, 30.0, 700.0]))
    def wait(self, seconds):
        self.clock.now += seconds
        self.expire()
        self.ledger.expire()

    @invariant()
    def what_is_held_is_known(self):
        for lease_id, lease in self.leases.items():
            for holder in "abc":
                times = self.holds.get((lease_id, holder), [0, 0, False])[1]
                assert self.ledger.times_held(lease_id, holder) == times
            if self.alive(lease_id):
                assert is_valid(lease, self.page), "somebody holds rows that are no longer announced"
        assert len(self.ledger) == len({lease_id for lease_id, _ in self.holds})

    @invariant()
    def no_rows_are_given_twice(self):
        rows = set()
        held = [lease.placement for lease_id, lease in self.leases.items() if self.alive(lease_id)]
        for one in held + [one for placements in self.reserved for one in placements]:
            assert one.row_start >= 0
            assert one.row_start + one.num_tokens <= ROWS
            mine = {(one.slot, row) for row in range(one.row_start, one.row_start + one.num_tokens)}
            assert not rows & mine
            rows |= mine

    @invariant()
    def nothing_is_kept_of_those_who_are_gone(self):
        assert sum(map(len, self.ledger._lapsed.values())) <= len(self.lapsed)
        assert set(self.ledger._held) == {holder for _, holder in self.holds}

    def teardown(self):
        for placements in self.reserved:
            self.ledger.written(placements, self.step + 1)
            self.ledger.settle(placements)
        for holder in "abc":
            self.ledger.leave(holder)
        assert (len(self.ledger), self.ledger.slots_leased) == (0, 0)
        assert not self.ledger._lapsed
        assert all(slot.free for slot in self.ledger._slots)
        assert self.ledger.reserve([ROWS] * SLOTS)  # everything can be had again


LedgerMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestLedger = LedgerMachine.TestCase


def test_appending_leaves_the_sequence_alone():
    ledger, page, _clock = new_ledger()
    [first] = filled(ledger, 3)
    before = dict(page.sequences)
    [second] = filled(ledger, 3, step=2)
    assert page.sequences == before
    assert first.placement.slot == second.placement.slot
    assert second.placement.row_start == 3
    assert page.steps[0] == (2, 6)
    assert is_valid(first, page)


def test_a_slot_is_odd_from_the_moment_its_rows_may_change_until_they_are_stable():
    ledger, page, _clock = new_ledger(slots=1)
    [lease] = filled(ledger, ROWS)
    ledger.release(lease.lease_id, "a")
    assert is_valid(lease, page)  # nothing has been written over it yet
    placements = ledger.reserve([2])
    assert page.sequences[0] == lease.placement.sequence + 1
    ledger.written(placements, 2)
    assert page.sequences[0] == placements[0].sequence == lease.placement.sequence + 2


def test_rows_that_no_lease_ever_named_need_no_new_sequence():
    ledger, page, _clock = new_ledger(slots=1)
    before = dict(page.sequences)
    placements = ledger.reserve([ROWS])
    ledger.settle(placements)  # given up before it ran
    ledger.reserve([ROWS])
    assert page.sequences == before


def test_all_slots_leased_is_slab_full_and_nothing_changes():
    ledger, page, _clock = new_ledger()
    leases = filled(ledger, *[ROWS] * SLOTS)
    before = dict(page.sequences)
    with pytest.raises(CallError, match="slab_full") as raised:
        ledger.reserve([1])
    assert raised.value.retry_after_s == 1
    assert page.sequences == before
    ledger.release(leases[1].lease_id, "a")
    assert [one.slot for one in ledger.reserve([1])] == [leases[1].placement.slot]


def test_it_is_all_or_none():
    ledger, page, _clock = new_ledger()
    filled(ledger, ROWS)
    before = dict(page.sequences)
    with pytest.raises(CallError, match="slab_full"):
        ledger.reserve([ROWS] * SLOTS)
    assert page.sequences == before
    assert [one.row_start for one in ledger.reserve([ROWS] * (SLOTS - 1))] == [0] * (SLOTS - 1)


def test_a_retry_is_soon_when_a_lease_ends_soon():
    ledger, _page, clock = new_ledger(slots=1)
    filled(ledger, ROWS, ttl_s=30)
    clock.now += 29.5
    with pytest.raises(CallError) as raised:
        ledger.reserve([1])
    assert raised.value.retry_after_s == pytest.approx(0.5)
    clock.now += 0.5
    assert ledger.reserve([1])


def test_a_holder_that_holds_twice_releases_twice():
    """Two readers behind one connection: the first one's release does not end the second one's lease."""
    ledger, _page, _clock = new_ledger()
    [lease] = filled(ledger, 1)
    ledger.hold(lease.lease_id, "a", 5)
    assert ledger.release(lease.lease_id, "a")
    assert ledger.times_held(lease.lease_id, "a") == 1
    assert ledger.expires_in_s(lease, "a") == 30  # nor was the first one's time cut short
    assert ledger.release(lease.lease_id, "a")
    assert not ledger.release(lease.lease_id, "a")


def test_followers_give_way_when_room_is_needed_and_only_then():
    ledger, page, _clock = new_ledger()
    leases = filled(ledger, *[ROWS] * SLOTS)
    for lease in leases:
        ledger.follow(lease, "follower", 600)
    ledger.release(leases[0].lease_id, "a")
    ledger.release(leases[1].lease_id, "a")
    assert all(is_valid(lease, page) for lease in leases)
    [placement] = ledger.reserve([ROWS])
    assert placement.slot == leases[0].placement.slot
    assert [is_valid(lease, page) for lease in leases] == [False, True, True]
    with pytest.raises(CallError, match="lease_expired"):
        ledger.renew(leases[0].lease_id, "follower", 5)
    ledger.renew(leases[1].lease_id, "follower", 5)  # who asks for it holds it like anybody else
    with pytest.raises(CallError, match="slab_full"):
        ledger.reserve([ROWS])


def test_a_call_that_would_not_fit_anyway_costs_followers_nothing():
    ledger, page, _clock = new_ledger()
    leases = filled(ledger, *[ROWS] * SLOTS)
    ledger.follow(leases[0], "follower", 600)
    ledger.release(leases[0].lease_id, "a")
    with pytest.raises(CallError, match="slab_full"):
        ledger.reserve([ROWS, ROWS])
    assert is_valid(leases[0], page)
    assert ledger.times_held(leases[0].lease_id, "follower") == 1


def test_an_empty_slab_takes_whatever_fits_into_it():
    """However the open slot was left: the rest of it may divide the prompts so that they no longer fit."""
    ledger, _page, _clock = new_ledger()
    for lease in filled(ledger, ROWS - 1):
        ledger.release(lease.lease_id, "a")
    assert [one.num_tokens for one in ledger.reserve([1, 1, ROWS, 1])] == [1, 1, ROWS, 1]


def test_ids_are_128_random_bits():
    ledger, _page, _clock = new_ledger()
    ids = {lease.lease_id for lease in filled(ledger, *[1] * ROWS)}
    assert len(ids) == ROWS
    assert all(len(one) == 32 and int(one, 16) >= 0 for one in ids)
