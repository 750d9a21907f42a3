"""A worker where only the base package is installed says what is missing."""

import json
import subprocess
import sys

import pytest
from service import clean_environment

BLOCKED = """
import sys
sys.modules[sys.argv[2]] = None  # as if it were not installed
from app.worker.__main__ import main
sys.exit(main(["--config", sys.argv[1]]))
"""


@pytest.mark.parametrize("package", ["torch", "transformers"])
def test_a_missing_package_is_named_with_what_to_do(tmp_path, package):
    socket_path = tmp_path / "run" / "worker.sock"
    config = {"socket_path": str(socket_path), "cache_dir": str(tmp_path / "cache"), "log_format": "text"}
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, json.dumps(config), package],
        capture_output=True, text=True, check=False, timeout=60, env=clean_environment(tmp_path),
    )  # fmt: skip
    assert done.returncode == 3
    assert f"needs the package {package}" in done.stderr
    assert "draftport[worker]" in done.stderr
    assert "Traceback" not in done.stderr
