from __future__ import annotations

import asyncio
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from app.sources import SourceError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@pytest.fixture
def outside(tmp_path: Path, write_model) -> Path:
    return write_model(tmp_path / "outside", {"secret": 1})


@pytest.fixture
def code_of(make_sources, root: Path):
    sources = make_sources(model_roots=(root,), max_file_bytes=100_000)

    def code_of(model: Path | str) -> str:
        with pytest.raises(SourceError) as caught:
            sources.load_sync(str(model))
        assert "outside" not in caught.value.detail
        return caught.value.code

    return code_of


def test_a_model_below_a_root(make_sources, root, write_model) -> None:
    text = json.dumps({"model_type": "dflash", "a": [1]}).encode()
    model = write_model(root / "org" / "name", text, generation_config=b'{"eos_token_id": 7}')
    loaded = make_sources(model_roots=(root,)).load_sync(f"{model}/")
    assert loaded.id == str(model)
    assert loaded.revision is None
    assert loaded.config == {"model_type": "dflash", "a": [1]}
    assert loaded.config_sha256 == hashlib.sha256(text).hexdigest()
    assert loaded.generation_config == {"eos_token_id": 7}
    assert loaded.findings == ()


def test_the_root_may_be_the_model(make_sources, root, write_model) -> None:
    write_model(root, {"a": 1})
    assert make_sources(model_roots=(root,)).load_sync(str(root)).config == {"a": 1}


def test_duplicate_keys_get_a_finding(make_sources, root, write_model) -> None:
    model = write_model(root / "m", b'{"a": 1, "a": 2}')
    loaded = make_sources(model_roots=(root,)).load_sync(str(model))
    assert loaded.config == {"a": 2}
    assert loaded.duplicate_keys == ("a",)
    assert [(f.code, f.severity, f.fields) for f in loaded.findings] == [
        ("duplicate_keys", "warning", ("a",))
    ]


def test_a_broken_generation_config_counts_as_absent(make_sources, root, write_model) -> None:
    model = write_model(root / "m", {}, generation_config=b"{")
    assert make_sources(model_roots=(root,)).load_sync(str(model)).generation_config is None


def test_outside_the_roots(code_of, outside, root) -> None:
    assert code_of(outside) == "model_not_allowed"
    assert code_of("/etc") == "model_not_allowed"
    assert code_of("/nonexistent") == "model_not_allowed"
    assert code_of(f"{root}-suffix") == "model_not_allowed"
    assert code_of(f"{root}/../outside") == "invalid_request"
    assert code_of(f"{root}/%2e%2e/outside") == "model_not_found"


def test_without_roots_no_path_is_allowed(make_sources, outside) -> None:
    with pytest.raises(SourceError) as caught:
        make_sources().load_sync(str(outside))
    assert caught.value.code == "model_not_allowed"
    assert "DRAFTPORT_MODEL_ROOTS" in caught.value.detail


def test_a_relative_root_is_refused(make_sources) -> None:
    with pytest.raises(ValueError, match="absolute"):
        make_sources(model_roots=(Path("models"),))


def test_nothing_there(code_of, root) -> None:
    (root / "empty").mkdir()
    (root / "file").write_text("x")
    assert code_of(root / "missing") == "model_not_found"
    assert code_of(root / "file") == "model_not_found"
    assert code_of(root / "file" / "below") == "model_not_found"
    assert code_of(root / "empty") == "config_not_found"


def test_mistral_params_are_named(make_sources, root) -> None:
    (root / "params.json").write_text("{}")
    with pytest.raises(SourceError, match=r"params\.json"):
        make_sources(model_roots=(root,)).load_sync(str(root))


@pytest.mark.parametrize(
    "text", [b"{", b"[]", b"", b'{"a":' * 5000, b"\xff", b'{"a": "' + b"x" * 200_000 + b'"}']
)
def test_broken_configs(code_of, root, write_model, text) -> None:
    assert code_of(write_model(root / "m", text)) == "config_invalid"


def test_a_huge_sparse_file_is_not_read(code_of, root) -> None:
    with (root / "config.json").open("wb") as file:
        file.truncate(1 << 40)
    assert code_of(root) == "config_invalid"


def test_a_file_that_only_looks_empty_is_bounded_while_reading(make_sources) -> None:
    # Files in /proc say that they have no bytes, and have many.
    from app.sources.beneath import DirectoryBeneath, FileTooLargeError

    with DirectoryBeneath(Path("/proc/self"), ()) as directory, pytest.raises(FileTooLargeError):
        directory.read("smaps", 100)


def test_no_regular_file(code_of, root) -> None:
    (root / "directory" / "config.json").mkdir(parents=True)
    assert code_of(root / "directory") == "config_invalid"
    (root / "fifo").mkdir()
    os.mkfifo(root / "fifo" / "config.json")
    assert code_of(root / "fifo") == "config_invalid"
    assert code_of(root / "fifo" / "config.json") == "model_not_found"
    (root / "device").mkdir()
    try:
        os.mknod(root / "device" / "config.json", 0o20666, os.makedev(1, 5))  # /dev/zero
    except PermissionError:
        return
    assert code_of(root / "device") == "config_invalid"


def test_symlinks_out_are_refused(code_of, root, outside) -> None:
    (root / "absolute").symlink_to(outside)
    (root / "relative").symlink_to("../outside")
    (root / "twice").symlink_to("absolute")
    (root / "up").symlink_to("..")
    (root / "proc").symlink_to("/proc/self/cwd")
    (root / "file").mkdir()
    (root / "file" / "config.json").symlink_to(outside / "config.json")
    (root / "prefix").symlink_to(f"{root}/../outside")
    for name in ("absolute", "relative", "twice", "up/outside", "proc", "file", "prefix"):
        assert code_of(root / name) == "model_not_allowed", name


def test_symlink_loops_end(code_of, root) -> None:
    (root / "a").symlink_to("b")
    (root / "b").symlink_to("a")
    (root / "self").symlink_to("self/self")
    (root / "fan").symlink_to("/".join(["."] * 1000 + ["fan"] * 100))
    for name in ("a", "self", "fan"):
        assert code_of(root / name) == "model_not_found"


def test_symlinks_that_stay_inside_are_followed(make_sources, root, write_model) -> None:
    repo = root / "models--org--name"
    write_model(repo / "snapshots" / "abc", {"a": 1})
    (repo / "blobs").mkdir()
    (repo / "snapshots" / "abc" / "config.json").rename(repo / "blobs" / "123")
    (repo / "snapshots" / "abc" / "config.json").symlink_to("../../blobs/123")
    (root / "current").symlink_to(repo / "snapshots" / "abc")
    (root / "around").symlink_to("models--org--name/../models--org--name/snapshots/./abc/")
    sources = make_sources(model_roots=(root,))
    for name in ("models--org--name/snapshots/abc", "current", "around"):
        assert sources.load_sync(str(root / name)).config == {"a": 1}


def test_a_root_may_itself_be_a_symlink(make_sources, tmp_path, root, write_model) -> None:
    write_model(root / "m", {"a": 1})
    (root / "n").symlink_to(root / "m")
    (tmp_path / "link").symlink_to(root)
    sources = make_sources(model_roots=(tmp_path / "link",))
    assert sources.load_sync(str(tmp_path / "link" / "n")).config == {"a": 1}


def test_a_wider_root_decides_over_a_narrower_one(make_sources, root, write_model) -> None:
    write_model(root / "shared", {"a": 1})
    (root / "team").mkdir()
    (root / "team" / "m").symlink_to("../shared")
    assert make_sources(model_roots=(root, root / "team")).load_sync(str(root / "team" / "m")).config == {
        "a": 1
    }


def test_no_swap_of_directory_and_symlink_leads_out(make_sources, root, outside, write_model) -> None:
    """Another process keeps swapping; whatever we read, it is never what lies outside."""
    write_model(root / "inside", {"public": 1})
    (root / "link").symlink_to(outside)
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            for source in ("inside", "link"):
                (root / source).rename(root / "model")
                (root / "model").rename(root / source)

    swapper = threading.Thread(target=swap)
    swapper.start()
    sources = make_sources(model_roots=(root,), local_recheck_s=0)
    seen = set()
    expected = {"{'public': 1}", "model_not_allowed", "model_not_found"}
    try:
        deadline = time.monotonic() + 20
        while not expected <= seen and time.monotonic() < deadline:
            for _ in range(50):
                try:
                    seen.add(str(sources.load_sync(str(root / "model")).config))
                except SourceError as error:
                    seen.add(error.code)
    finally:
        stop.set()
        swapper.join()
    # Every state was met, or the test shows nothing; and no other, above all not the secret.
    assert seen == expected


def test_descriptors_are_closed(make_sources, root, write_model) -> None:
    write_model(root / "m", {"a": 1})
    (root / "out").symlink_to("/etc")
    sources = make_sources(model_roots=(root,), local_recheck_s=0)
    sources.load_sync(str(root / "m"))
    before = len(list(Path("/proc/self/fd").iterdir()))
    for name in ("m", "out", "missing") * 20:
        try:
            sources.load_sync(str(root / name)).token_text(3)
        except SourceError:
            continue
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_unreadable(write_model) -> None:
    """As another user, since root may read everything."""
    script = """
import os, sys
from pathlib import Path
from app.sources import ModelSources, SourceError, SourceSettings
root = Path(sys.argv[1])
sources = ModelSources(SourceSettings(model_roots=(root,)))
sources.load_sync(str(root / "readable"))
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
for name in ("file", "directory", "sealed/directory", "other"):
    try:
        print(sources.load_sync(str(root / name)).config)
    except SourceError as error:
        print(error.code)
"""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        for model in ("file", "directory", "sealed/directory", "readable", "other"):
            write_model(root / model, {"a": 1})
        closed = (root / "file" / "config.json", root / "directory", root / "sealed")
        for path in closed:
            path.chmod(0)
        try:
            command = [sys.executable, "-c", script, name]
            done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        finally:
            for path in closed:
                path.chmod(0o755)
    assert done.stdout.splitlines() == ["config_invalid", "config_invalid", "model_not_found", "{'a': 1}"]


def test_changes_are_seen_after_the_recheck_interval(make_sources, root, write_model) -> None:
    model = str(write_model(root / "m", {"a": 1}))
    sources = make_sources(model_roots=(root,), local_recheck_s=0)
    first = sources.load_sync(model)
    assert sources.load_sync(model) is first
    write_model(root / "m", {"a": 22})
    assert sources.load_sync(model).config == {"a": 22}
    (root / "m" / "config.json").unlink()
    with pytest.raises(SourceError):
        sources.load_sync(model)


def test_a_fresh_answer_touches_no_file(make_sources, root, write_model) -> None:
    model = str(write_model(root / "m", {"a": 1}))
    sources = make_sources(model_roots=(root,), local_recheck_s=3600)

    async def twice():
        first = await sources.load(model)
        (root / "m" / "config.json").unlink()
        # A coroutine that ends without ever suspending took no thread hop.
        again = sources.load(model)
        with pytest.raises(StopIteration) as done:
            again.send(None)
        return first, done.value.value

    first, second = asyncio.run(twice())
    assert first is second
    assert sources.cached(model) is first


def test_the_cache_is_bounded_by_number_and_by_bytes(make_sources, root, write_model) -> None:
    models = [str(write_model(root / f"m{index}", {"a": "x" * 1000})) for index in range(5)]
    few = make_sources(model_roots=(root,), cache_entries=2, local_recheck_s=3600)
    small = make_sources(model_roots=(root,), cache_bytes=2500, local_recheck_s=3600)
    for model in models:
        few.load_sync(model)
        small.load_sync(model)
    assert [few.cached(model) is not None for model in models] == [False, False, False, True, True]
    assert [small.cached(model) is not None for model in models] == [False, False, False, True, True]


def test_malformed_references_reach_no_file(make_sources, root) -> None:
    async def load():
        await make_sources(model_roots=(root,)).load(f"{root}/a\x00b")

    with pytest.raises(SourceError) as caught:
        asyncio.run(load())
    assert caught.value.code == "invalid_request"
