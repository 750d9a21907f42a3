import pytest

torch = pytest.importorskip("torch")


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture
def worker(start_stub):
    return start_stub()


@pytest.fixture
def region(worker):
    from app.reader import Region

    with Region.attach(worker.path) as attached:
        yield attached


@pytest.fixture
def order():
    """``order(region, "recycle")``: what ``Stub.order`` in stub_worker.py understands."""

    def give(region, text, **options):
        [lease] = region.forward(prompts=[text], **options)
        lease.release()

    return give


@pytest.fixture
def active():
    """``active(region)``: how many leases the worker counts."""
    from app.reader.deadline import Deadline
    from app.transport import messages as wire

    def count(region):
        return region.connection.call(wire.Stats(id=0), wire.StatsReply, Deadline(10)).leases_active

    return count
