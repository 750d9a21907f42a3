"""The connector's side of vLLM's worker without vLLM: a real cache, slab, socket and readers, and an engine that is a
thread; its API is an HTTP server that has the thread run what it is asked to, or misbehaves.
"""

import contextlib
import json
import queue
import random
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest
import torch
from service import wait_until
from slab_checks import idle, stats

from app.export.leases import new_lease_id
from app.integrations.vllm.layer_order import stored_positions
from app.integrations.vllm.row_source import CacheSource
from app.integrations.vllm.settings import ConnectorSettings
from app.integrations.vllm.step import Prompt, Step
from app.integrations.vllm.worker_side import WorkerSide, exporter_here
from app.reader import Region, RemoteError, StaleLeaseError

BLOCKS, LAYERS, BLOCK, HIDDEN = 64, 3, 16, 8
POINTS = (4, 0, 2)


class Engine(threading.Thread):
    """Takes prompts from a queue, up to four a step, as vLLM's worker would."""

    def __init__(self, side, cache):
        super().__init__(daemon=True)
        self.side, self.cache = side, cache
        self.waiting = queue.Queue()
        self.behaviour = "run"
        self.start()

    def run(self):
        while (first := self.waiting.get()) is not None:
            batch = [first]
            while len(batch) < 4 and not self.waiting.empty():
                batch.append(self.waiting.get())
            self.step([one for one in batch if one is not None])

    def step(self, batch):
        free = list(range(1, BLOCKS))
        random.Random(len(batch)).shuffle(free)
        prompts = []
        for prompt, _ in batch:
            count = -(-len(prompt.token_ids) // BLOCK)
            prompt.block_ids, free = free[:count], free[count:]
            prompts.append(prompt)
            for index, token in enumerate(prompt.token_ids):
                block, offset = prompt.block_ids[index // BLOCK], index % BLOCK
                for layer, point in enumerate(sorted(POINTS)):
                    self.cache[block, layer, offset] = row_of(token, point)
        step = Step(announced=[one.lease_id for one in prompts], prompts=prompts)
        self.side.begin(step)
        if self.behaviour == "run":
            self.side.end(step)
        for _, done in batch:
            done.set()

    def submit(self, token_ids, ticket=None, ttl_s=30.0):
        prompt, done = Prompt(new_lease_id(), "r", token_ids, [], ttl_s, ticket), threading.Event()
        self.waiting.put((prompt, done))
        assert done.wait(30)
        return prompt.lease_id


def source_of(cache):
    return CacheSource(cache, POINTS, stored_positions(POINTS))


def row_of(token, point):
    return torch.full((HIDDEN,), float(token * 10 + point))


def wanted(token_ids):
    return torch.stack([torch.cat([row_of(token, point) for point in POINTS]) for token in token_ids])


class Api(BaseHTTPRequestHandler):
    """``/v1/completions``, with the faults that ``server.fault`` asks for."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        fault = self.server.fault
        if fault == "hang up":
            self.close_connection = True
            self.connection.close()
            return
        if fault == "hang":
            self.server.released.wait(30)
        if fault in (None, "no rows"):
            self.server.engine.behaviour = "run" if fault is None else "drop"
            self.server.engine.submit(body["prompt"], body["kv_transfer_params"]["draftport"]["ticket"])
        answer = b"{}"
        with contextlib.suppress(ConnectionError):  # the call was given up
            self.send_response(fault if isinstance(fault, int) else 200)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    def log_message(self, *_):
        pass


@pytest.fixture
def setup(tmp_path):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Api)
    server.daemon_threads, server.fault, server.released = True, None, threading.Event()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}/v1/"
    settings = ConnectorSettings(
        socket_path=str(tmp_path / "w.sock"), slots=2, rows_per_slot=100, api_url=url
    )
    cache = torch.zeros(BLOCKS, LAYERS, BLOCK, HIDDEN)
    side = WorkerSide(vllm_config(), settings, source_of(cache))
    server.engine = Engine(side, cache)
    try:
        with Region.attach(tmp_path / "w.sock") as region:
            yield SimpleNamespace(
                api=server, engine=server.engine, side=side, region=region, path=tmp_path / "w.sock"
            )
            server.released.set()
            wait_until(lambda: idle(region), 30)
    finally:
        server.engine.waiting.put(None)
        side.stop()
        server.shutdown()
        server.server_close()
    server.engine.join(10)
    thread.join(10)
    assert not (tmp_path / "w.sock").exists()


def vllm_config():
    """The few things that the connector reads of vLLM's."""
    model = SimpleNamespace(
        max_model_len=200,
        served_model_name="tiny",
        model="tiny",
        revision=None,
        architecture="LlamaForCausalLM",
        dtype=torch.float32,
        get_hidden_size=lambda: HIDDEN,
        get_total_num_hidden_layers=lambda: 4,
        get_vocab_size=lambda: 1000,
    )
    return SimpleNamespace(
        model_config=model,
        parallel_config=SimpleNamespace(data_parallel_rank=0, data_parallel_size=1),
        scheduler_config=SimpleNamespace(max_num_batched_tokens=64),
        kv_transfer_config=SimpleNamespace(engine_id="engine"),
    )


def check(lease, token_ids):
    assert torch.equal(lease.tensor(), wanted(token_ids))
    lease.check()


@pytest.mark.parametrize("length", [1, 15, 16, 17, 32, 100])
def test_rows_of_both_roads(setup, length):
    tokens = [number % 1000 for number in range(length)]
    with setup.region.open(setup.engine.submit(tokens)) as lease:
        check(lease, tokens)
    [lease] = setup.region.forward([tokens], timeout_s=30)
    with lease:
        check(lease, tokens)


def test_many_clients(setup):
    """Through both roads at once; no wrong row, whatever else is refused."""
    failures = []

    def client(seed):
        source = random.Random(seed)
        with Region.attach(setup.path) as region:
            for _ in range(30):
                tokens = [source.randrange(1000) for _ in range(source.randint(1, 60))]
                try:
                    if source.random() < 0.5:
                        lease = region.open(setup.engine.submit(tokens, ttl_s=5.0))
                    else:
                        [lease] = region.forward([tokens], timeout_s=30)
                except RemoteError as error:
                    if error.code != "slab_full":
                        failures.append(error)
                    continue
                with lease:
                    if not torch.equal(lease.tensor(), wanted(tokens)):
                        failures.append(tokens)
                    lease.check()

    threads = [threading.Thread(target=client, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures


def test_a_lease_that_is_announced_is_waited_for(setup):
    """The answer of vLLM may reach a client before the rows are there."""
    prompt = Prompt(new_lease_id(), "r", [1, 2], [3], 30.0)
    setup.side.begin(Step(announced=[prompt.lease_id]))
    opened = queue.Queue()
    thread = threading.Thread(target=lambda: opened.put(setup.region.open(prompt.lease_id)))
    thread.start()
    with pytest.raises(queue.Empty):
        opened.get(timeout=0.3)
    setup.side.end(Step(prompts=[prompt]))
    opened.get(timeout=10).release()
    thread.join(10)


def test_a_lease_that_is_withdrawn_wakes_who_waits(setup):
    lease_id = new_lease_id()
    setup.side.begin(Step(announced=[lease_id]))
    threading.Timer(0.2, setup.side.begin, [Step(withdrawn=[lease_id])]).start()
    with pytest.raises(RemoteError) as failed:
        setup.region.open(lease_id)
    assert failed.value.code == "cancelled"


def test_no_slot(setup):
    """Nobody waits; who comes for the rows is told why there are none, and a scheduler in this process at once."""
    held = [setup.engine.submit([1] * 90) for _ in range(2)]
    refused = setup.engine.submit([1] * 90)
    assert exporter_here("engine").refused(refused)
    assert not exporter_here("engine").refused(held[0])
    with pytest.raises(RemoteError) as failed:
        setup.region.open(refused)
    assert (failed.value.code, stats(setup.region).rejected) == ("slab_full", 1)
    for lease_id in held:
        setup.region.open(lease_id).release()
    setup.region.open(setup.engine.submit([1] * 90)).release()


def test_rows_that_nobody_comes_for_go_with_their_time(setup):
    lease_id = setup.engine.submit([1, 2, 3], ttl_s=1.0)
    wait_until(lambda: idle(setup.region), 10)
    with pytest.raises(RemoteError) as failed:
        setup.region.open(lease_id)
    assert failed.value.code == "lease_expired"


def test_the_first_reader_takes_the_place_of_the_request(setup):
    lease_id = setup.engine.submit([1, 2, 3])
    with Region.attach(setup.path) as other:
        first, second = setup.region.open(lease_id), other.open(lease_id)
        first.release()
        check(second, [1, 2, 3])
        second.release()
        with pytest.raises(RemoteError):
            other.open(lease_id)


def test_a_slot_is_used_again(setup):
    leases = []
    for number in range(6):
        [lease] = setup.region.forward([[number] * 90], timeout_s=30)
        check(lease, [number] * 90)
        lease.release()
        leases.append(lease)
    with pytest.raises(StaleLeaseError):
        leases[0].check()


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (500, "worker_error"),
        (400, "worker_error"),
        (401, "worker_error"),
        (429, "overloaded"),
        (503, "overloaded"),
        ("hang up", "worker_unavailable"),
        ("no rows", "worker_error"),
    ],
)
def test_an_api_that_fails(setup, fault, code):
    setup.api.fault = fault
    with pytest.raises(RemoteError) as failed:
        setup.region.forward([[1, 2], [3]], timeout_s=30)
    assert failed.value.code == code
    wait_until(lambda: idle(setup.region), 10)
    setup.api.fault = None
    for lease in setup.region.forward([[1, 2], [3]], timeout_s=30):
        lease.release()


def test_an_api_that_is_not_there(setup):
    setup.api.server_close()
    with pytest.raises(RemoteError) as failed:
        setup.region.forward([[1]], timeout_s=30)
    assert failed.value.code == "worker_unavailable"
    assert failed.value.retry_after_s


@pytest.mark.parametrize("end", ["deadline", "connection"])
def test_given_up_in_the_midst(setup, end):
    setup.api.fault = "hang"
    other = Region.attach(setup.path)
    with pytest.raises((TimeoutError, RemoteError)):
        other.forward([[1] * 80, [2] * 80], timeout_s=0.3)
    if end == "connection":
        other.close()
    wait_until(lambda: idle(setup.region), 10)
    other.close()
    setup.api.released.set()


def test_a_prompt_whose_call_was_given_up_takes_no_slot(setup):
    """vLLM may be past the point where it notices; nobody would come for such rows."""
    lease_id = setup.engine.submit([1, 2, 3], ticket="given up")
    with pytest.raises(RemoteError) as failed:
        setup.region.open(lease_id)
    assert failed.value.code == "cancelled"
    assert (stats(setup.region).leases_active, stats(setup.region).rejected) == (0, 0)


def test_without_an_api(tmp_path):
    settings = ConnectorSettings(socket_path=str(tmp_path / "w.sock"), rows_per_slot=50)
    side = WorkerSide(vllm_config(), settings, source_of(torch.zeros(BLOCKS, LAYERS, BLOCK, HIDDEN)))
    try:
        with Region.attach(tmp_path / "w.sock") as region, pytest.raises(RemoteError) as failed:
            region.forward([[1]], timeout_s=10)
        assert "api_url" in failed.value.detail
    finally:
        side.stop()


def test_a_second_engine_on_the_same_socket_is_refused(setup, tmp_path):
    settings = ConnectorSettings(socket_path=str(setup.path))
    with pytest.raises(Exception, match="alive on this socket"):
        WorkerSide(vllm_config(), settings, source_of(torch.zeros(BLOCKS, LAYERS, BLOCK, HIDDEN)))


def test_a_write_that_fails_is_this_prompts_affair_only(setup):
    bad, good = (Prompt(new_lease_id(), "r", [1, 2], blocks, 30.0) for blocks in ([BLOCKS + 9], [5]))
    step = Step(announced=[bad.lease_id, good.lease_id], prompts=[bad, good])
    setup.side.begin(step)
    setup.side.end(step)
    with pytest.raises(RemoteError) as failed:
        setup.region.open(bad.lease_id)
    assert failed.value.code == "worker_error"
    setup.region.open(good.lease_id).release()
