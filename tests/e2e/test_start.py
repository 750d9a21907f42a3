"""The API process: up in under a second, small, and without the libraries that only the worker needs."""

import time
from pathlib import Path

import pytest

HEAVY = ("torch", "transformers", "numpy", "accelerate", "safetensors_rust", "tokenizers")


def memory_mib(pid):
    with Path(f"/proc/{pid}/status").open() as status:
        fields = dict(line.split(":", 1) for line in status)
    return int(fields["VmRSS"].split()[0]) / 1024


def mapped_libraries(pid):
    with Path(f"/proc/{pid}/maps").open() as maps:
        return {line.split(None, 5)[5].strip() for line in maps if len(line.split(None, 5)) == 6}


def test_livez_answers_under_a_second_after_the_start(start_service):
    times = []
    for _ in range(5):
        running = start_service(WORKER="off")
        times.append(time.monotonic() - running.started_at)
        assert running.stop() == 0
        if times[-1] < 1.0:
            break
    assert min(times) < 1.0, times


def test_livez_does_not_wait_for_the_worker(start_service):
    running = start_service()
    assert running.worker_state() in ("starting", "loading")
    running.wait_worker()


def test_the_api_process_is_small_and_never_loads_torch(service):
    service.http.post("/v1/mask-token", json={"config": {"mask_token_id": 5}}).raise_for_status()
    leases = service.http.post("/v1/hidden-states", json={"prompt_token_ids": [[1, 2, 3]] * 20}).json()[
        "leases"
    ]
    for lease in leases:
        service.http.get(f"/v1/hidden-states/leases/{lease['lease_id']}/tensor").raise_for_status()
        service.http.delete(f"/v1/hidden-states/leases/{lease['lease_id']}").raise_for_status()
    service.http.get("/docs").raise_for_status()
    service.http.get("/openapi.json").raise_for_status()
    assert memory_mib(service.process.pid) < 120
    libraries = mapped_libraries(service.process.pid)
    assert not {name for name in libraries for heavy in HEAVY if f"/{heavy}/" in name}
    with_torch = mapped_libraries(service.worker_pid())
    assert any("/torch/" in name for name in with_torch), "the same look finds it where it is"


@pytest.mark.parametrize("module", ["app.main", "app.cli", "app.client", "app.reader"])
def test_no_entry_imports_what_only_the_worker_needs(module, run_python):
    script = f"import sys, {module}; print(sorted({{'torch', 'transformers', 'numpy'}} & set(sys.modules)))"
    assert run_python(script) == "[]\n"
