"""Rows that vLLM exports, against transformers and against our own worker, for the same prompts."""

import os
import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from service import wait_until
from slab_checks import check_rows, idle
from vllm_server import OwnService, need_vllm

from app.reader import Region, RemoteError
from app.transport.errors import StaleLeaseError

need_vllm()

LAYOUTS = {
    "llama, prefix cache, ids out of order": ("llama", [4, 0, 2], ["--enable-prefix-caching", ""]),
    "qwen3, no prefix cache, all points": ("qwen3", [0, 1, 2, 3, 4], ["--no-enable-prefix-caching", ""]),
}


@pytest.fixture(scope="module", params=LAYOUTS, ids=str)
def engine(request, start_vllm):
    family, layer_ids, arguments = LAYOUTS[request.param]
    server = start_vllm(family, layer_ids, *arguments, rows_per_slot=1024, lease_ttl_s=5).wait_ready()
    server.family, server.layer_ids = family, layer_ids
    return server


@pytest.fixture
def region(engine):
    with Region.attach(engine.socket_path, timeout_s=60) as attached:
        yield attached
        wait_until(lambda: idle(attached), 60)


def test_the_description_says_what_was_asked_for(region, engine):
    layout = region.target.hidden_states
    assert layout.capture_points == layout.layer_ids == engine.layer_ids
    assert (layout.source, layout.norm, layout.width) == ("aux_layers", "pre", 64 * len(engine.layer_ids))
    assert region.target.num_hidden_layers == 4


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 127, 128, 129, 500, 1023])
def test_lone_prompts(region, engine, references, length):
    """Block borders, chunks of the prefill (512 tokens a step), and the longest prompt there can be."""
    prompt = [random.Random(length).randrange(1024) for _ in range(length)]
    for _again in range(2):  # the second time from the prefix cache, where there is one
        [lease] = region.forward([prompt], timeout_s=60)
        with lease:
            check_rows(lease, prompt, references(engine.family), engine.layer_ids)


def test_a_batch_in_one_call(region, engine, references, prompts):
    asked = prompts(40, longest=120, seed=5)
    for prompt, lease in zip(asked, region.forward(asked, timeout_s=120), strict=True):
        with lease:
            check_rows(lease, prompt, references(engine.family), engine.layer_ids)


def test_prompts_that_share_a_beginning(region, engine, references):
    """What the prefix cache answers in part, at and off the borders of its blocks, in one step and in later ones."""
    common = [random.Random(9).randrange(1024) for _ in range(300)]
    asked = [[*common[:keep], keep % 1024, 5] for keep in (300, 256, 129, 128, 127, 16, 1)]
    for wave in (asked, asked[::-1]):
        for prompt, lease in zip(wave, region.forward(wave, timeout_s=120), strict=True):
            with lease:
                check_rows(lease, prompt, references(engine.family), engine.layer_ids)


def test_rows_of_vllms_own_traffic(region, engine, references, prompts):
    """Its clients learn the lease's id; longer answers change nothing about the prompt's rows."""
    for prompt in prompts(6, longest=200, seed=6):
        told = engine.complete(prompt, max_tokens=20)
        assert told["num_tokens"] == len(prompt)
        with region.open(told["lease_id"]) as lease:
            check_rows(lease, prompt, references(engine.family), engine.layer_ids)
        with pytest.raises(RemoteError) as failed:
            region.open(told["lease_id"])
        assert failed.value.code == "lease_not_found"


def test_a_follower_of_steps_sees_the_traffic(region, engine, references):
    with Region.attach(engine.socket_path) as other:
        stream = other.steps(timeout_s=30)
        prompt = list(range(40, 90))
        told = engine.complete(prompt)
        [lease] = next(iter(stream)).leases
        assert lease.lease_id == told["lease_id"]
        check_rows(lease, prompt, references(engine.family), engine.layer_ids)
        lease.release()
    with region.open(told["lease_id"]):
        pass


def test_a_request_may_go_without(engine, region):
    assert engine.complete([5, 6, 7], export=False) == {}
    assert engine.complete([5, 6, 7], export="what?", lease_ttl_s=-1) != {}
    with region.steps(timeout_s=5) as _:
        pass
    wait_until(lambda: idle(region), 60, 0.5)  # rows that nobody comes for go with their time


@pytest.mark.parametrize(
    ("prompt", "code"),
    [
        ([], "empty_prompt"),
        ([1024], "token_out_of_range"),
        ([-1], "token_out_of_range"),
        ([1] * 1024, "prompt_too_long"),
    ],
)
def test_refusals(region, prompt, code):
    with pytest.raises(RemoteError) as failed:
        region.forward([[1, 2], prompt], timeout_s=60)
    assert failed.value.code == code


def test_text_is_refused(region):
    with pytest.raises(RemoteError) as failed:
        region.forward(prompts=["hello"], timeout_s=60)
    assert failed.value.code == "tokenizer_missing"


def test_a_ticket_of_ones_own_making_is_worth_nothing(region, engine):
    told = engine.complete([7, 8, 9], ticket="0" * 32)
    with pytest.raises(RemoteError) as failed:
        region.open(told["lease_id"])
    assert failed.value.code == "cancelled"


def test_the_same_rows_as_our_worker(region, engine, targets, tmp_path, prompts):
    """Both exporters behind REST: the same interface, the same rows."""
    ids = ",".join(map(str, engine.layer_ids))
    own = OwnService(
        tmp_path / "own",
        TARGET=str(targets(engine.family)),
        AUX_LAYER_IDS=ids,
        DTYPE="float32",
        CACHE_DIR=str(tmp_path / "cache"),
    )
    attached = OwnService(
        tmp_path / "attached",
        WORKER="attach",
        RUNTIME_DIR=str(engine.directory),
        CACHE_DIR=str(tmp_path / "c2"),
    )
    try:
        for service in (own, attached):
            service.wait_worker()
        asked = prompts(12, longest=150, seed=8)
        files = [rest_rows(service, asked) for service in (own, attached)]
        for name in files[0]:
            assert (files[0][name].float() - files[1][name].float()).abs().max() < 1e-5
        described = [service.http.get("/v1/target").json()["hidden_states"] for service in (own, attached)]
        for name in ("source", "capture_points", "norm", "width", "dtype", "bytes_per_token"):
            assert described[0][name] == described[1][name]
    finally:
        own.close()
        attached.close()


def rest_rows(service, prompts):
    from safetensors.torch import load

    answer = service.http.post(
        "/v1/hidden-states",
        json={"prompt_token_ids": prompts},
        headers={"accept": "application/vnd.safetensors"},
    )
    assert answer.status_code == 200, answer.text
    return load(answer.content)


def test_five_hundred_prompts_of_sixteen_clients(engine, references, prompts):
    """Not one wrong row, and no slot that stays taken."""
    asked = prompts(500, longest=100, seed=11)
    reference = references(engine.family)
    wanted = [reference.rows(prompt, engine.layer_ids) for prompt in asked]

    def client(number):
        wrong = 0
        with Region.attach(engine.socket_path, timeout_s=60) as mine:
            for index in range(number, len(asked), 16):
                [lease] = forward_patiently(mine, asked[index])
                with lease:
                    wrong += bool((lease.tensor() - wanted[index]).abs().max() >= 1e-5)
                    lease.check()
        return wrong

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(client, range(16))) == 0
    with Region.attach(engine.socket_path, timeout_s=60) as region:
        wait_until(lambda: idle(region), 60)


def forward_patiently(region, prompt):
    for _ in range(200):
        try:
            return region.forward([prompt], timeout_s=120)
        except RemoteError as error:
            if error.code != "slab_full":
                raise
            wait_until(lambda: True, 1, 0.05)
    raise AssertionError("the slab stayed full")


def test_a_lease_that_ran_out_is_stale(region):
    [lease] = region.forward([[3, 4, 5]], lease_ttl_s=1, timeout_s=60)
    wait_until(lambda: idle(region), 30)
    with pytest.raises(StaleLeaseError):
        lease.check()


def test_tensor_parallel(start_vllm, references, monkeypatch):
    """One of two ranks, each a process of its own, writes and serves."""
    if (os.cpu_count() or 1) < 2:
        pytest.skip("vLLM's CPU build wants a core for each of the two ranks")
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0|1")
    server = start_vllm("llama", [4, 0, 2], "--tensor-parallel-size", "2").wait_ready()
    with Region.attach(server.socket_path, timeout_s=60) as region:
        for length in (1, 100, 400):
            prompt = [random.Random(length).randrange(1024) for _ in range(length)]
            [lease] = region.forward([prompt], timeout_s=60)
            with lease:
                check_rows(lease, prompt, references("llama"), [4, 0, 2])
    server.close()
