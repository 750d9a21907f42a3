import subprocess
import sys

import pytest
from service import clean_environment


@pytest.fixture
def cli(tmp_path):
    """``cli("mask-token", "-", stdin="{}", HUB="off")``: runs the command line; returns the finished process."""

    def run(*arguments, stdin="", **settings):
        environment = clean_environment(tmp_path) | {
            f"DRAFTPORT_{name}": value for name, value in settings.items()
        }
        return subprocess.run(
            [sys.executable, "-m", "app.cli", *map(str, arguments)],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            env=environment | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")},
            cwd=tmp_path,
            timeout=60,
        )

    return run
