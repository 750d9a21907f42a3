import random

import pytest
import torch
from worker_process import Worker

from app.worker.demo import demo_target

SETTINGS = {"slots": 4, "max_num_batched_tokens": 256, "device": "cpu"}


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def demo_cache(tmp_path_factory):
    """A cache that has the demo target."""
    cache = tmp_path_factory.mktemp("cache")
    demo_target(str(cache))
    return cache


@pytest.fixture(scope="session")
def shared_worker(tmp_path_factory, demo_cache):
    """One worker for all tests that leave it as they found it: 4 slots of 256 rows."""
    worker = Worker(tmp_path_factory.mktemp("worker"), cache_dir=str(demo_cache), **SETTINGS)
    yield worker.wait_ready()
    assert worker.stop() == 0
    assert "Traceback" not in worker.log()


@pytest.fixture
def worker(shared_worker):
    """The shared worker; after the test nothing may be left in it."""
    shared_worker.wait_idle()
    yield shared_worker
    shared_worker.wait_idle()


@pytest.fixture
def start_worker(tmp_path, demo_cache):
    """``start_worker(**settings) -> Worker``: one of the test's own, not waited for; killed at the end."""
    started = []

    def start(*arguments, pass_fds=(), **settings):
        settings = SETTINGS | {"cache_dir": str(demo_cache)} | settings
        started.append(Worker(tmp_path / f"worker-{len(started)}", *arguments, pass_fds=pass_fds, **settings))
        return started[-1]

    yield start
    for one in started:
        one.kill()


@pytest.fixture(scope="session")
def lone_rows(demo_cache):
    """``lone_rows(prompt)``: the rows of a forward of that prompt alone, by plain transformers."""
    import transformers

    directory = demo_target(str(demo_cache))
    model = transformers.AutoModel.from_pretrained(directory, dtype=torch.float32).eval()

    def run(prompt):
        with torch.inference_mode():
            return model(input_ids=torch.tensor([prompt]), use_cache=False).last_hidden_state[0]

    return run


@pytest.fixture
def prompts():
    """``prompts(count, longest, seed)``: token ids of mixed length."""

    def make(count, longest=60, seed=1):
        source = random.Random(seed)
        return [[source.randrange(256) for _ in range(source.randint(1, longest))] for _ in range(count)]

    return make
