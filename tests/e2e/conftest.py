import subprocess
import sys
from pathlib import Path

import pytest
from service import clean_environment


@pytest.fixture
def run_python(tmp_path):
    """Runs a script in a fresh interpreter and returns what it printed."""

    def run(script):
        return subprocess.run(
            [sys.executable, "-c", script],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            env=clean_environment(tmp_path),
            cwd=tmp_path,
        ).stdout

    return run


@pytest.fixture
def shared_memory_names():
    """Names in /dev/shm that are ours."""

    def names():
        return sorted(path.name for path in Path("/dev/shm").iterdir() if "draftport" in path.name)

    return names
