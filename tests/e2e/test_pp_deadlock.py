"""The hang that the load-config rule prevents, on two gloo ranks that stand for two pipeline stages.

A draft exists on the last stage only. fastsafetensors broadcasts over all ranks, so the last stage waits for a first
stage that has gone on to its next collective. With the effective load config it loads.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from app.drafting.load_config import LoadConfig
from app.drafting.load_config_answer import answer_load_config

torch = pytest.importorskip("torch")
pytest.importorskip("fastsafetensors")
safetensors_torch = pytest.importorskip("safetensors.torch")

STAGE = Path(__file__).with_name("pipeline_stage.py")
TARGET = LoadConfig(load_format="fastsafetensors")
TENSORS, ELEMENTS = 6, 64 * 64
TOTAL = sum(range(TENSORS)) * ELEMENTS
# A load of these files takes milliseconds; a stage that waits this long waits for something that never comes.
HANG_BOUND_S = 4
FINISH_BOUND_S = 60


@pytest.fixture
def checkpoint(tmp_path):
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    for number in range(2):
        tensors = {f"layer.{i}": torch.full((64, 64), float(i)) for i in range(TENSORS) if i % 2 == number}
        safetensors_torch.save_file(tensors, folder / f"model-{number + 1:05d}-of-00002.safetensors")
    return folder


@pytest.fixture
def run_stages(tmp_path, checkpoint):
    """Run two stages with their draft's load formats ("" = no draft here) and give what each reports."""
    stages = []

    def run(*load_formats, bound_s):
        for rank, load_format in enumerate(load_formats):
            arguments = [str(rank), str(tmp_path / "store"), str(checkpoint), load_format, str(bound_s)]
            command = [sys.executable, str(STAGE), *arguments]
            stages.append(
                subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            )
        reports = []
        for stage in stages:
            out, err = stage.communicate(timeout=120)
            assert out, err
            reports.append(json.loads(out.splitlines()[-1]))
        return reports

    yield run
    for stage in stages:
        stage.kill()
        stage.communicate()
        assert stage.returncode is not None


def test_with_the_targets_load_format_the_last_stage_hangs(run_stages):
    first, last = run_stages("", TARGET.load_format, bound_s=HANG_BOUND_S)
    # Both wait, each in another collective, until the time-out of one ends it and the other sees its peer go.
    assert last["phase"] == "loading"
    assert last["tensors"] == 0
    assert first["phase"] == "next step"
    assert first["error"]
    assert last["error"]
    assert "Timed out" in first["error"] + last["error"]


def test_with_the_effective_load_format_it_loads(run_stages):
    answer = answer_load_config(TARGET, pipeline_parallel_size=2, method="dspark")
    assert (answer.draft.load_format, answer.reason) == ("auto", "pp_collective_loader")
    first, last = run_stages("", answer.draft.load_format, bound_s=FINISH_BOUND_S)
    assert first == {"phase": "done", "tensors": 0, "sum": 0, "error": None}
    assert last == {"phase": "done", "tensors": TENSORS, "sum": TOTAL, "error": None}


def test_with_the_draft_on_every_stage_fastsafetensors_loads(run_stages):
    reports = run_stages(TARGET.load_format, TARGET.load_format, bound_s=FINISH_BOUND_S)
    assert reports == [{"phase": "done", "tensors": TENSORS, "sum": TOTAL, "error": None}] * 2
