"""What a test asks of a slab: its counters, and that rows are right."""

from app.reader.deadline import Deadline
from app.transport import messages as wire


def stats(region):
    return region.connection.call(wire.Stats(id=0), wire.StatsReply, Deadline(60))


def idle(region):
    counted = stats(region)
    return counted.leases_active == 0 and counted.slots_leased == 0 and counted.queue_depth == 0


def check_rows(lease, prompt, reference, layer_ids):
    wanted = reference.rows(prompt, layer_ids)
    assert lease.descriptor.token_ids == prompt
    worst = (lease.tensor() - wanted).abs().max().item()
    lease.check()
    assert worst < 1e-5
