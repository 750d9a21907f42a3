"""The Dockerfile by its linter, and against what the pods rely on. Building it: scripts/build-image."""

import re
import subprocess
import sys
from pathlib import Path

from service import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text()


def stages():
    """``name: instructions`` of every stage."""
    parts = re.split(r"^FROM \S+ AS (\S+)$", DOCKERFILE, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_hadolint_has_nothing_to_say():
    tool = Path(sys.executable).with_name("hadolint")
    done = subprocess.run(
        [str(tool), "--config", ROOT / ".hadolint.yaml", ROOT / "Dockerfile"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_shellcheck_has_nothing_to_say():
    tool = Path(sys.executable).with_name("shellcheck")
    scripts = [
        path for path in (ROOT / "scripts").iterdir() if path.read_text().startswith("#!/usr/bin/env bash")
    ]
    assert scripts
    done = subprocess.run(
        [str(tool), *map(str, [*scripts, ROOT / ".ci" / "run"])],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout


def test_the_last_stage_is_the_worker_on_a_pinned_cuda_runtime():
    assert list(stages())[-1] == "worker"
    assert re.search(r"^ARG CUDA_IMAGE=\S*nvidia/cuda:[\d.]+-runtime-ubuntu[\d.]+$", DOCKERFILE, re.MULTILINE)
    assert re.search(r"^ARG PYTHON_IMAGE=\S*python:3\.\d+\.\d+-slim", DOCKERFILE, re.MULTILINE)


def test_images_run_as_a_number_and_see_no_gpu_unasked():
    for name in ("metadata", "worker"):
        text = stages()[name]
        assert re.search(r"^USER [1-9]\d*:[1-9]\d*$", text, re.MULTILINE)
        assert "NVIDIA_VISIBLE_DEVICES=void" in text
        assert "DRAFTPORT_HOST=0.0.0.0" in text
        assert re.search(r'^ENTRYPOINT \["tini", "--", "draftport"\]$', text, re.MULTILINE)
        assert "org.opencontainers.image.licenses" in text
        assert "pip install" not in text, "built elsewhere: no build tools in the image"


def test_only_what_is_needed_enters_the_build():
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in lines
    assert {line[1:] for line in lines if line.startswith("!")} == {
        "app", "constraints-*.txt", "LICENSE", "README.md", "pyproject.toml",
    }  # fmt: skip
