"""Fixtures about where configs come from."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hub_server import HubServer

from app.sources import HubEnvironment, ModelSources, SourceSettings


@pytest.fixture
def hub_cache_dir(tmp_path: Path) -> Path:
    return tmp_path / "hub-cache"


@pytest.fixture
def environment(hub: HubServer, hub_cache_dir: Path) -> HubEnvironment:
    return HubEnvironment(endpoint=hub.endpoint, cache_dir=hub_cache_dir, offline=False)


@pytest.fixture(autouse=True)
def no_own_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever token the machine holds stays out of the tests."""
    from huggingface_hub import constants

    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.delenv("HUGGING_FACE_HUB_TOKEN", raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))


@pytest.fixture
def make_sources() -> Iterator[Callable[..., ModelSources]]:
    """``make_sources(environment=None, **settings)``; every one is closed at the end."""
    made: list[ModelSources] = []

    def make(environment: HubEnvironment | None = None, **settings) -> ModelSources:
        made.append(ModelSources(SourceSettings(**settings), environment=environment))
        return made[-1]

    yield make
    for sources in made:
        sources.close()


@pytest.fixture
def write_model() -> Callable[..., Path]:
    def write(directory: Path, config: dict | bytes, **others: bytes) -> Path:
        directory.mkdir(parents=True, exist_ok=True)
        text = config if isinstance(config, bytes) else json.dumps(config).encode()
        (directory / "config.json").write_bytes(text)
        for name, content in others.items():
            (directory / f"{name}.json").write_bytes(content)
        return directory

    return write
