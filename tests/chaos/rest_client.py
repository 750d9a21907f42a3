"""REST clients beside the readers: every answer is right, or a problem that says when to come back."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter

import httpx
import safetensors.numpy
from content import Content

SAFETENSORS = "application/vnd.safetensors"
PASSING = {
    "slab_full", "overloaded", "worker_unavailable", "worker_restarted", "stopping", "deadline_exceeded",
    "lease_expired",
}  # fmt: skip


class RestClient(threading.Thread):
    """Works until ``stopping`` is set. ``api_gone`` counts the API process's ends and starts: odd while it is dead."""

    def __init__(self, url: str, content: Content, seed: int, stopping, api_gone) -> None:
        super().__init__(name=f"rest-{seed}")
        self.http = httpx.Client(base_url=url, timeout=60)
        self.content = content
        self.random = random.Random(seed)
        self.stopping = stopping
        self.api_gone = api_gone
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []

    def run(self) -> None:
        acts = (self.metadata, self.download, self.leased, self.abandoned)
        with self.http:
            while not self.stopping.is_set():
                generation = self.api_gone()
                try:
                    self.random.choices(acts, (4, 4, 3, 1))[0]()
                except httpx.TransportError as error:
                    self.counts["broken connection"] += 1
                    if generation == self.api_gone() and generation % 2 == 0:
                        self.faults.append(f"lost request: {error!r}")
                    time.sleep(0.05)

    def post(self, prompts, **options):
        body = {"prompt_token_ids": prompts, **options.pop("body", {})}
        return self.http.post("/v1/hidden-states", json=body, **options)

    def passed(self, answer: httpx.Response, status: int = 200) -> bool:
        if answer.status_code == status:
            self.counts["answered"] += 1
            return True
        code = answer.json().get("code")
        self.counts[str(code)] += 1
        if code not in PASSING:
            self.faults.append(f"{answer.status_code} {answer.text}")
        time.sleep(0.02)
        return False

    def metadata(self) -> None:
        number = self.random.randrange(10**6)
        answer = self.http.post("/v1/mask-token", json={"config": {"pard_token": number}})
        if self.passed(answer) and answer.json()["mask_token_id"] != number:
            self.faults.append("wrong mask token id")

    def download(self) -> None:
        prompts = self.content.draw(self.random)
        answer = self.post(prompts, headers={"accept": SAFETENSORS})
        if self.passed(answer):
            self.compare(safetensors.numpy.load(answer.content), prompts, "hidden_states.{}")

    def leased(self) -> None:
        prompts = self.content.draw(self.random, 2)
        answer = self.post(prompts)
        if not self.passed(answer):
            return
        for lease, prompt in zip(answer.json()["leases"], prompts, strict=True):
            path = f"/v1/hidden-states/leases/{lease['lease_id']}"
            rows = self.http.get(f"{path}/tensor")
            if self.passed(rows):
                self.compare(safetensors.numpy.load(rows.content), [prompt], "hidden_states")
            self.passed(self.http.delete(path), 204)

    def abandoned(self) -> None:
        """Leases that nobody ends: their time does."""
        self.passed(self.post(self.content.draw(self.random, 1), body={"lease_ttl_s": 1}))

    def compare(self, tensors, prompts, name: str) -> None:
        for index, prompt in enumerate(prompts):
            self.counts["verified"] += 1
            if not self.content.is_right(prompt, tensors[name.format(index)]):
                self.faults.append("wrong rows over REST")
