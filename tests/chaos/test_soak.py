"""A steady load for a while: memory, descriptors and mappings stay flat, and answers do not get slower.

``SOAK_SECONDS`` chooses how long; ``make soak`` runs ten minutes.
"""

import os
import statistics
import time
from pathlib import Path

import pytest

SECONDS = float(os.environ.get("SOAK_SECONDS", "20"))


def usage(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    resident = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return {
        "MiB": int(resident.split()[1]) / 1024,
        "descriptors": len(list(Path(f"/proc/{pid}/fd").iterdir())),
        "mappings": len(Path(f"/proc/{pid}/maps").read_text().splitlines()),
    }


def work_until(deadline, service, region):
    """Milliseconds of each round: metadata, a leased prompt by socket, one over REST."""
    rounds = []
    while time.monotonic() < deadline:
        started = time.monotonic()
        number = len(rounds)
        answer = service.http.post("/v1/mask-token", json={"config": {"pard_token": number}})
        assert answer.json()["mask_token_id"] == number
        for lease in region.forward([[number % 300] * (1 + number % 200), [1, 2]]):
            with lease:
                lease.tensor()
                lease.check()
        body = {"prompt_token_ids": [[number % 300, 5]]}
        [lease] = service.http.post("/v1/hidden-states", json=body).json()["leases"]
        assert service.http.get(f"/v1/hidden-states/leases/{lease['lease_id']}/tensor").status_code == 200
        service.http.delete(f"/v1/hidden-states/leases/{lease['lease_id']}")
        service.http.get("/metrics")
        rounds.append((time.monotonic() - started) * 1000)
    return rounds


@pytest.mark.timeout(SECONDS * 2 + 120)
def test_nothing_grows_and_nothing_slows_down(start_service, capsys):
    from app.reader import Region

    service = start_service(LOG_LEVEL="WARNING").wait_worker()
    pids = {"API": service.process.pid, "worker": service.worker_pid()}
    with Region.attach(service.socket_path) as region:
        work_until(time.monotonic() + SECONDS / 4, service, region)  # allocators fill their pools
        before = {name: usage(pid) for name, pid in pids.items()}
        first = work_until(time.monotonic() + SECONDS / 4, service, region)
        work_until(time.monotonic() + SECONDS / 4, service, region)
        last = work_until(time.monotonic() + SECONDS / 4, service, region)
        after = {name: usage(pid) for name, pid in pids.items()}
    with capsys.disabled():
        print(f"\nsoak, {SECONDS:g} s: before {before}\n after {after}")
        for name, rounds in (("first", first), ("last", last)):
            p99 = statistics.quantiles(rounds, n=100)[98]
            print(
                f" {name} quarter: {len(rounds)} rounds, p50 {statistics.median(rounds):.2f} ms, p99 {p99:.2f} ms"
            )
    for name in pids:
        assert after[name]["descriptors"] <= before[name]["descriptors"] + 2
        assert after[name]["mappings"] <= before[name]["mappings"] + 20
        assert after[name]["MiB"] <= before[name]["MiB"] * 1.05 + 5
    # The fastest tenth: what other work on the machine delays now and then, these rounds escaped.
    assert statistics.quantiles(last, n=10)[0] <= 1.5 * statistics.quantiles(first, n=10)[0]
