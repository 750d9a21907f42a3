"""Fixtures for what talks to other projects; what needs them skips where they are not installed."""

from __future__ import annotations

import random

import pytest
from vllm_server import VOCAB, Reference, VllmServer, installed, make_target


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """Two OpenMP pools on two cores would spin against each other."""
    if installed("torch"):
        import torch

        torch.set_num_threads(1)


@pytest.fixture(scope="session")
def targets(tmp_path_factory):
    """``targets("llama")``: the directory of a tiny random target."""
    made = {}

    def target(family):
        if family not in made:
            made[family] = make_target(tmp_path_factory.mktemp("target") / family, family)
        return made[family]

    return target


@pytest.fixture(scope="session")
def references(targets):
    """``references("llama")``: what transformers makes of the target's prompts."""
    made = {}

    def reference(family):
        if family not in made:
            made[family] = Reference(targets(family))
        return made[family]

    return reference


@pytest.fixture(scope="module")
def start_vllm(targets, tmp_path_factory):
    """``start_vllm("llama", layer_ids, ...) -> VllmServer``; all are ended with the module."""
    started = []

    def start(family, layer_ids, *arguments, **extra):
        server = VllmServer(tmp_path_factory.mktemp("vllm"), targets(family), layer_ids, *arguments, **extra)
        started.append(server)
        return server

    yield start
    for server in started:
        server.close()


@pytest.fixture
def prompts():
    """``prompts(count, longest, seed)``: token ids of mixed length."""

    def make(count, longest=60, seed=1):
        source = random.Random(seed)
        return [[source.randrange(VOCAB) for _ in range(source.randint(1, longest))] for _ in range(count)]

    return make
