"""Rows that a reader in another process sees, against transformers' own forward of the same prompt alone."""

import json
import random
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

READER = """
import json, sys
import numpy as np
from app.reader import Region

socket_path, prompts, out = sys.argv[1], json.loads(sys.stdin.read()), sys.argv[2]
rows = []
with Region.attach(socket_path) as region:
    for prompt in prompts:
        [lease] = region.forward([prompt], timeout_s=60)
        with lease:
            rows.append(lease.tensor().clone().numpy())
            lease.check()
np.savez(out, *rows)
"""


@pytest.fixture(scope="module")
def reference(service):
    """Plain transformers on the demo target's files: token ids to the rows after the final norm."""
    import torch
    from transformers import AutoModel

    [directory] = [
        path.parent for path in Path(service.environment["DRAFTPORT_CACHE_DIR"]).rglob("config.json")
    ]
    model = AutoModel.from_pretrained(directory, dtype=torch.float32).eval()

    @torch.inference_mode()
    def rows(prompt):
        return model(input_ids=torch.tensor([prompt])).last_hidden_state[0].numpy()

    return rows


def lengths():
    chosen = random.Random(7).sample(range(6, 500), 20)
    return [1, 2, 3, 4, 5, 63, 64, 65, 255, 256, 257, 499, 500, *chosen]


def other_clients(service, done, failures):
    """REST clients with prompts of their own, until ``done``."""

    def run(seed):
        random_ = random.Random(seed)
        while not done.is_set():
            prompts = [[random_.randrange(200) for _ in range(random_.randint(1, 300))] for _ in range(3)]
            headers = {"accept": "application/vnd.safetensors"}
            answer = service.http.post(
                "/v1/hidden-states", json={"prompt_token_ids": prompts}, headers=headers
            )
            if answer.status_code != 200:
                failures.append(answer.text)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    return threads


def test_a_reader_in_another_process_sees_transformers_rows_while_others_run(service, reference, tmp_path):
    vocabulary = service.http.get("/v1/target").json()["vocab_size"]
    random_ = random.Random(11)
    prompts = [[random_.randrange(vocabulary) for _ in range(length)] for length in lengths()]
    done, failures = threading.Event(), []
    others = other_clients(service, done, failures)
    try:
        subprocess.run(
            [sys.executable, "-c", READER, str(service.socket_path), str(tmp_path / "rows.npz")],
            input=json.dumps(prompts),
            text=True,
            check=True,
            env=service.environment,
            timeout=150,
        )
    finally:
        done.set()
        for thread in others:
            thread.join()
    assert failures == []
    with np.load(tmp_path / "rows.npz") as found:
        for index, prompt in enumerate(prompts):
            expected = reference(prompt)
            rows = found[f"arr_{index}"]
            assert rows.shape == expected.shape
            scale = np.abs(expected).max()
            assert np.abs(rows - expected).max() <= 1e-5 * scale, f"a prompt of {len(prompt)} tokens"
