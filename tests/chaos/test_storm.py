"""Under any mixture of kills, pauses and hostile clients: right rows or a typed error, and nothing left behind.

``CHAOS_SECONDS`` and ``CHAOS_SEED`` choose length and course; ``make chaos`` runs ten minutes.
"""

import json
import os
import time

import pytest

SECONDS = float(os.environ.get("CHAOS_SECONDS", "15"))
SEED = int(os.environ.get("CHAOS_SEED", "1"))

KINDS = {
    "hostile_client": 60,
    "hostile_request": 20,
    "kill_reader": 6,
    "pause_reader": 3,
    "pause_worker": 1,
    "kill_worker": 1,
    "kill_worker_while_it_loads": 0.2,
    "kill_api": 0.5,
}


@pytest.mark.timeout(SECONDS * 2 + 240)
def test_right_rows_or_a_typed_error_and_nothing_left_behind(content, cache_dir, tmp_path, capsys):
    from storm import Storm

    storm = Storm(tmp_path, content, SEED, CACHE_DIR=cache_dir)
    try:
        storm.run(SECONDS, KINDS)
        report = storm.report()
        with capsys.disabled():
            print(f"\nchaos, seed {SEED}, {SECONDS:g} s: {json.dumps(report, indent=2)}")
        assert report["faults"] == []
        assert report["counts"]["verified"] > 10 * SECONDS
        assert set(report["events"]) == set(KINDS)
        assert storm.left_behind() == []
    finally:
        storm.close()


def test_without_kills_every_request_is_answered(content, cache_dir, tmp_path):
    from storm import Storm

    storm = Storm(tmp_path, content, SEED + 1, CACHE_DIR=cache_dir)
    try:
        storm.run(min(SECONDS, 5), {"pause_worker": 1, "pause_reader": 1, "hostile_client": 10})
        report = storm.report()
        assert report["faults"] == []
        assert not {"broken connection", "worker_restarted", "worker_unavailable"} & set(report["counts"])
        started = time.monotonic()
        answer = storm.service.http.post(
            "/v1/hidden-states", json={"prompt_token_ids": [[1]], "lease_ttl_s": 1}
        )
        assert answer.status_code == 200
        assert time.monotonic() - started < 10
        assert storm.left_behind() == []
    finally:
        storm.close()
