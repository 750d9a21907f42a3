"""The demo target: the same bytes everywhere, built once, safe against races and leftovers."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from app.transport.worker_config import WorkerConfig
from app.worker.demo import DEMO_MODEL, demo_target, is_intact, write_demo_target
from app.worker.inspect_target import inspect_target
from app.worker.target_error import TargetError

REPOSITORY = Path(__file__).parents[3]
# Holds for every machine and every torch release: the weights come from a hash function.
WEIGHTS_SHA256 = "728d485283381f8fffacbbb7eaa1294053d45d5b561798a40f4130c28440316a"


def _contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_two_builds_are_byte_identical_and_small(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write_demo_target(tmp_path / name)

    contents = _contents(tmp_path / "one")
    assert contents == _contents(tmp_path / "two")
    assert set(contents) == {
        "config.json",
        "manifest.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert sum(map(len, contents.values())) < 5_000_000
    assert hashlib.sha256(contents["model.safetensors"]).hexdigest() == WEIGHTS_SHA256


def test_is_built_once(tmp_path):
    first = demo_target(str(tmp_path))
    before = {path.name: path.stat().st_mtime_ns for path in first.iterdir()}

    assert demo_target(str(tmp_path)) == first
    assert {path.name: path.stat().st_mtime_ns for path in first.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == [first.name]


@pytest.mark.parametrize("damage", ["truncate", "remove", "manifest", "empty", "file"])
def test_a_broken_leftover_is_rebuilt(tmp_path, damage):
    good = _contents(demo_target(str(tmp_path)))
    final = demo_target(str(tmp_path))
    weights = final / "model.safetensors"
    if damage == "truncate":
        weights.write_bytes(weights.read_bytes()[:-1])
    elif damage == "remove":
        (final / "tokenizer.json").unlink()
    elif damage == "manifest":
        (final / "manifest.json").write_text("[")
    else:
        for path in final.iterdir():
            path.unlink()
        if damage == "file":
            final.rmdir()
            final.write_text("in the way")
    assert not is_intact(final)

    assert _contents(demo_target(str(tmp_path))) == good
    assert [path.name for path in tmp_path.iterdir()] == [final.name]


def test_concurrent_builders_agree(tmp_path):
    code = f"from app.worker.demo import demo_target; print(demo_target({str(tmp_path)!r}))"
    builders = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        for _ in range(4)
    ]

    answers = {builder.communicate(timeout=60)[0].strip() for builder in builders}
    assert [builder.returncode for builder in builders] == [0] * 4
    [answer] = answers
    assert is_intact(Path(answer))
    assert [path.name for path in tmp_path.iterdir()] == [Path(answer).name]


def test_a_cache_that_can_not_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(TargetError) as caught:
        inspect_target(WorkerConfig(cache_dir=str(tmp_path / "file" / "cache")))

    assert caught.value.code == "cache_unwritable"
    assert str(tmp_path) not in caught.value.detail


def test_no_target_means_the_demo_target(tmp_path):
    plan = inspect_target(WorkerConfig(cache_dir=str(tmp_path), device="cpu"))

    assert plan.description.model == DEMO_MODEL
    assert plan.description.has_tokenizer
    assert plan.description.max_num_batched_tokens == 2048
    assert (plan.dtype, plan.width, plan.row_bytes) == ("float32", 128, 512)
