"""vLLM short of memory, near its limits, overrun, aborted, misconfigured and killed."""

import contextlib
import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from service import wait_until
from slab_checks import check_rows, idle, stats
from vllm_server import need_vllm

from app.reader import ConnectionLostError, Region, RemoteError
from app.transport.errors import StaleLeaseError

need_vllm()

LAYER_IDS = [3, 1]


@pytest.fixture(scope="module")
def engine(start_vllm):
    """Little of everything: 1,024 tokens of cache, sequences of at most 256, 2 slots of 200 rows."""
    server = start_vllm(
        "llama",
        LAYER_IDS,
        "--max-model-len",
        "256",
        "--num-gpu-blocks-override",
        "8",
        "--enable-prefix-caching",
        "",
        slots=2,
        rows_per_slot=200,
        lease_ttl_s=4,
    )
    return server.wait_ready()


@pytest.fixture
def region(engine):
    with Region.attach(engine.socket_path, timeout_s=60) as attached:
        yield attached
        wait_until(lambda: idle(attached), 60)


def opened(region, told, prompt, reference):
    """Whether the rows of a prompt could be had; those that can must be right."""
    try:
        lease = region.open(told["lease_id"])
    except RemoteError as error:
        return error.code
    with lease:
        check_rows(lease, prompt, reference, LAYER_IDS)
    return "right"


def prompt_of(seed, length):
    source = random.Random(seed)
    return [source.randrange(1024) for _ in range(length)]


def test_rows_beside_sequences_as_long_as_may_be(engine, region, references):
    """vLLM would skip the rows of a step with a longer one, and its prefix cache would keep the blocks without them."""
    reference, stop = references("llama"), threading.Event()

    def fill(seed):
        number = 0
        while not stop.is_set():
            engine.complete(prompt_of(seed + number, 250), max_tokens=6, export=False)
            number += 1

    seen = Counter()
    with ThreadPoolExecutor(2) as pool:
        filling = [pool.submit(fill, seed) for seed in (10_000, 20_000)]
        try:
            for number in range(100):
                prompt = prompt_of(number % 7, 130 + number % 5)
                seen[opened(region, engine.complete(prompt), prompt, reference)] += 1
        finally:
            stop.set()
        for one in filling:
            one.result(60)
    assert seen == {"right": 100}


def test_the_longest_prompt(region, references):
    prompt = prompt_of(1, 200)
    [lease] = region.forward([prompt], timeout_s=60)
    with lease:
        check_rows(lease, prompt, references("llama"), LAYER_IDS)


def test_a_prompt_longer_than_a_slot_is_answered_without_rows(engine, region):
    before = stats(region).rejected
    told = engine.complete(prompt_of(2, 201))
    with pytest.raises(RemoteError) as failed:
        region.open(told["lease_id"])
    assert failed.value.code == "prompt_too_long"
    assert stats(region).rejected == before + 1


def test_preemption(engine, region, references):
    """Eight sequences that grow to 2/3 of all blocks each: vLLM preempts, and computes prompts anew."""
    reference = references("llama")
    prompts = [prompt_of(50 + number, 90) for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        told = list(pool.map(lambda prompt: engine.complete(prompt, max_tokens=120, lease_ttl_s=60), prompts))
    codes = [opened(region, one, prompt, reference) for one, prompt in zip(told, prompts, strict=True)]
    assert codes.count("right") >= 4
    assert set(codes) <= {"right", "slab_full"}
    metrics = engine.http.get("/metrics").text
    preempted = [line for line in metrics.splitlines() if line.startswith("vllm:num_preemptions_total")]
    assert float(preempted[0].split()[-1]) > 0


def test_a_full_slab_stalls_nobody(engine, region, references):
    """Twenty requests that nobody reads fill both slots; all are answered, and what has no rows says so."""
    before = stats(region).rejected
    began = time.monotonic()
    told = [engine.complete(prompt_of(number, 100)) for number in range(20)]
    assert time.monotonic() - began < 60
    codes = [
        opened(region, one, prompt_of(number, 100), references("llama")) for number, one in enumerate(told)
    ]
    assert codes.count("right") >= 1
    assert stats(region).rejected > before
    wait_until(lambda: idle(region), 60)
    prompt = prompt_of(77, 100)
    assert opened(region, engine.complete(prompt), prompt, references("llama")) == "right"


def test_a_full_slab_is_said_before_anything_runs(region):
    leases = [region.forward([prompt_of(number, 180)], timeout_s=60)[0] for number in range(2)]
    with pytest.raises(RemoteError) as failed:
        region.forward([[1] * 100], timeout_s=60)
    assert failed.value.code == "slab_full"
    for lease in leases:
        lease.check()
        lease.release()


def test_aborted_requests_leave_nothing(engine, region):
    """Clients that hang up: on vLLM's API in the midst of a prompt's answer, on the socket in the midst of a call."""

    def hang_up(number):
        body = {"model": "tiny", "prompt": prompt_of(number, 150), "max_tokens": 100, "ignore_eos": True}
        with (
            httpx.Client(timeout=0.02 + number % 4 * 0.05) as client,
            contextlib.suppress(httpx.TimeoutException),
        ):
            client.post(engine.url + "/v1/completions", json=body)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(hang_up, range(12)))
    wait_until(
        lambda: idle(region), 60
    )  # prompts that were computed before their client hung up wait for a reader
    for _ in range(5):
        # Whether it is in time or not: the connection ends with the context.
        with Region.attach(engine.socket_path) as other, contextlib.suppress(TimeoutError, RemoteError):
            other.forward([prompt_of(3, 190)] * 2, timeout_s=0.01)
    wait_until(lambda: idle(region), 60)


def test_a_deadline_on_the_worker(region):
    with pytest.raises((TimeoutError, RemoteError)):
        region.forward([prompt_of(5, 190)] * 2, timeout_s=0.0005)
    wait_until(lambda: idle(region), 60)


def test_the_end_of_vllm_and_a_restart(start_vllm, references):
    first = start_vllm("llama", LAYER_IDS).wait_ready()
    region = Region.attach(first.socket_path, timeout_s=60)
    prompt = prompt_of(4, 60)
    [lease] = region.forward([prompt], timeout_s=60)
    rows = lease.tensor()
    first.kill()
    wait_until(lambda: region.why_unusable() is not None, 10)
    with pytest.raises(StaleLeaseError):
        lease.check()
    assert rows.shape == (60, 128)  # still memory, only no longer to be trusted
    with pytest.raises(ConnectionLostError):
        region.forward([prompt], timeout_s=10)
    region.close()

    again = start_vllm("llama", LAYER_IDS, socket_path=str(first.socket_path)).wait_ready()
    with Region.attach(first.socket_path, timeout_s=60) as fresh:
        assert fresh.descriptor.epoch != region.descriptor.epoch
        with pytest.raises(RemoteError) as failed:
            fresh.open(lease.lease_id)
        assert failed.value.code == "lease_not_found"
        [lease] = fresh.forward([prompt], timeout_s=60)
        with lease:
            check_rows(lease, prompt, references("llama"), LAYER_IDS)
    again.close()


@pytest.mark.parametrize(
    ("layer_ids", "extra", "sentence"),
    [
        ([1, 1], {}, "repeat a layer"),
        ([1, 9], {}, "lie outside [0, 4]"),
        ([2], {"slot": 3}, "unknown field `slot`"),
    ],
    ids=["repeated", "out of range", "misspelt setting"],
)
def test_what_cannot_be_right_does_not_start(start_vllm, layer_ids, extra, sentence):
    server = start_vllm("llama", layer_ids, **extra)
    assert server.process.wait(120) != 0
    assert sentence in server.log()
