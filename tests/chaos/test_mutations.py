"""A storm that can't fail proves nothing: with one rule broken in a copy of the code, it must."""

import shutil

import pytest
from service import ROOT


@pytest.fixture
def mutated(tmp_path):
    """``mutated(file, line, replacement)``: a copy of the code in which that one line is another."""

    def mutate(file, line, replacement):
        copy = tmp_path / "mutated"
        shutil.copytree(ROOT / "app", copy / "app", ignore=shutil.ignore_patterns("__pycache__"))
        path = copy / "app" / file
        text = path.read_text()
        assert text.count(line) == 1, f"{file} has changed: choose the line to break anew"
        path.write_text(text.replace(line, replacement))
        return copy

    return mutate


def storm_over(code, content, cache_dir, directory, seed=3):
    from storm import Storm

    directory.mkdir(exist_ok=True)
    storm = Storm(directory, content, seed, code=code, CACHE_DIR=cache_dir)
    try:
        storm.run(4, {"hostile_request": 1})
        return storm.report()["faults"], storm.left_behind()
    finally:
        storm.close()


def test_the_sound_code_passes_this_very_storm(content, cache_dir, tmp_path):
    assert storm_over(ROOT, content, cache_dir, tmp_path) == ([], [])


def test_a_reader_that_ignores_the_sequence_is_caught(mutated, content, cache_dir, tmp_path):
    code = mutated(
        "reader/lease.py", "if sequence % 2 or page.sequence(slot) != sequence:", "if sequence % 2:"
    )
    # How often rows are overwritten while somebody looks depends on the machine's other work.
    storms = (storm_over(code, content, cache_dir, tmp_path / str(seed), seed)[0] for seed in range(3, 7))
    assert any("wrong rows" in fault for faults in storms for fault in faults)


def test_a_worker_whose_leases_never_expire_is_caught(mutated, content, cache_dir, tmp_path):
    code = mutated(
        "export/leases.py",
        "[one for one, hold in lease.holders.items() if now >= hold.deadline]",
        "[one for one, hold in lease.holders.items() if now >= hold.deadline + 1e9]",
    )
    faults, left = storm_over(code, content, cache_dir, tmp_path)
    assert faults or any("leases_active" in one for one in left)
