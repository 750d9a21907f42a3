"""``kill -9`` of a reader, of the worker, of the API process: what is promised of each."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from service import wait_until

from app.reader import Region, StaleLeaseError, TransportError
from app.reader.deadline import Deadline
from app.transport import messages as wire

HOLD = """
import sys, time
from app.reader import Region
region = Region.attach(sys.argv[1])
leases = region.forward([[1, 2, 3]] * 5, lease_ttl_s=600)
print("holding", flush=True)
time.sleep(600)
"""


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def is_stale(lease):
    """Whether its check fails: the kernel closes a killed process's sockets only once its last thread is gone."""
    try:
        lease.check()
    except StaleLeaseError:
        return True
    return False


def metric(service, name):
    text = service.http.get("/metrics").text
    return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name))


def stats(region):
    return region.connection.call(wire.Stats(id=0), wire.StatsReply, Deadline(10))


def test_a_killed_reader_gives_back_what_it_held_within_a_second(service, shared_memory_names):
    reader = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(service.socket_path)],
        stdout=subprocess.PIPE,
        text=True,
        env=service.environment,
    )
    try:
        assert reader.stdout.readline() == "holding\n"
        with Region.attach(service.socket_path) as region:
            assert stats(region).leases_active >= 5
            reader.kill()
            killed_at = time.monotonic()
            wait_until(lambda: stats(region).leases_active == 0, 5)
            assert time.monotonic() - killed_at < 1.0
            assert stats(region).slots_leased == 0
    finally:
        reader.kill()
        reader.wait()
        reader.stdout.close()
    assert service.answers("/readyz/worker")
    assert shared_memory_names() == []


def test_a_killed_worker_is_told_replaced_and_its_leases_are_stale(start_service, shared_memory_names):
    service = start_service().wait_worker()
    region = Region.attach(service.socket_path)
    [lease] = region.forward([[1, 2, 3]], lease_ttl_s=600)
    rest = service.http.post("/v1/hidden-states", json={"prompt_token_ids": [[1, 2]]}).json()
    rows = lease.tensor(copy=True)
    os.kill(service.worker_pid(), signal.SIGKILL)
    killed_at = time.monotonic()
    wait_until(lambda: service.worker_state() != "ready", 10, 0.005)
    assert time.monotonic() - killed_at < 1.0
    wait_until(lambda: is_stale(lease), 1)
    with pytest.raises(TransportError):
        region.forward([[1]])
    assert service.http.post("/v1/mask-token", json={"config": {"mask_token_id": 5}}).status_code == 200
    answer = service.http.post("/v1/hidden-states", json={"prompt_token_ids": [[1]]})
    assert answer.json()["code"] in ("worker_unavailable", "worker_restarted")
    assert int(answer.headers["retry-after"]) >= 1
    service.wait_worker()
    lease_id = rest["leases"][0]["lease_id"]
    answer = service.http.get(f"/v1/hidden-states/leases/{lease_id}/tensor")
    assert (answer.status_code, answer.json()["code"]) == (410, "lease_expired")
    with Region.attach(service.socket_path) as fresh:
        assert fresh.descriptor.epoch != region.descriptor.epoch
        [again] = fresh.forward([[1, 2, 3]])
        assert again.tensor(copy=True).equal(rows)
    region.close()
    assert metric(service, "draftport_worker_restarts_total") == 1
    assert service.stop() == 0
    assert shared_memory_names() == []


def test_requests_in_flight_when_the_worker_dies_get_worker_restarted(start_service):
    service = start_service().wait_worker()
    answers = []

    def ask():
        while not answers or answers[-1].status_code == 200:
            body = {"prompt_token_ids": [list(range(200))] * 40, "lease_ttl_s": 1}
            headers = {"accept": "application/vnd.safetensors"}
            answers.append(service.http.post("/v1/hidden-states", json=body, headers=headers))

    pid = service.worker_pid()
    thread = threading.Thread(target=ask)
    thread.start()
    wait_until(lambda: len(answers) >= 2)
    time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    thread.join(60)
    assert not thread.is_alive()
    assert answers[-1].status_code == 503
    assert answers[-1].json()["code"] in ("worker_restarted", "worker_unavailable")
    assert "retry-after" in answers[-1].headers


def test_a_killed_api_process_takes_its_worker_with_it(start_service, shared_memory_names):
    service = start_service().wait_worker()
    worker = service.worker_pid()
    region = Region.attach(service.socket_path)
    [lease] = region.forward([[1, 2, 3]])
    service.process.kill()
    service.process.wait()
    wait_until(lambda: not alive(worker), 10)
    wait_until(lambda: is_stale(lease), 1)
    region.close()
    assert shared_memory_names() == []
    # What the killed one left on disk does not hinder the next one.
    again = start_service(RUNTIME_DIR=service.environment["DRAFTPORT_RUNTIME_DIR"]).wait_worker()
    with Region.attach(again.socket_path) as fresh:
        assert fresh.forward([[1, 2, 3]])
    assert again.stop() == 0


def test_an_attached_worker_outlives_the_api_process(start_service, tmp_path):
    service = start_service(WORKER="attach", RUNTIME_DIR=tmp_path / "attached")
    assert service.worker_state() in ("starting", "restarting")
    worker = subprocess.Popen(
        [sys.executable, "-m", "app.cli", "worker"], env=service.environment, cwd=tmp_path
    )
    try:
        service.wait_worker()
        region = Region.attach(service.socket_path)
        [lease] = region.forward([[1, 2, 3]], lease_ttl_s=600)
        rest = service.http.post("/v1/hidden-states", json={"prompt_token_ids": [[1]], "lease_ttl_s": 600})
        assert rest.status_code == 200
        service.process.kill()
        service.process.wait()
        wait_until(lambda: stats(region).leases_active == 1, 5)  # the API process's own hold ended
        lease.check()
        again = start_service(WORKER="attach", RUNTIME_DIR=tmp_path / "attached").wait_worker()
        assert again.http.post("/v1/hidden-states", json={"prompt_token_ids": [[1]]}).status_code == 200
        lease.check()
        region.close()
        worker.terminate()
        assert worker.wait(30) == 0
        wait_until(lambda: again.worker_state() != "ready", 5)
        assert again.answers("/readyz")
    finally:
        worker.kill()
        worker.wait()
