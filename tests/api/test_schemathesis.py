"""Whatever fits the OpenAPI document, and much that does not: no 5xx but the promised, every answer as described."""

import os
import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = os.environ.get("SCHEMATHESIS_EXAMPLES", "30")


def test_every_operation_alone_and_in_sequence(service, capsys, tmp_path):
    done = subprocess.run(
        [
            str(Path(sys.executable).with_name("schemathesis")),
            "--config-file", str(Path(__file__).with_name("schemathesis.toml")),
            "run", f"{service.url}/openapi.json", "--max-examples", EXAMPLES, "--seed", "1", "--no-color",
            "--generation-database", "none",
        ],
        capture_output=True, text=True, check=False, timeout=150,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr
    assert re.search(r"Tested: (\d+)", done.stdout)[1] == re.search(r"Selected: (\d+)", done.stdout)[1]
    with capsys.disabled():
        print("\nschemathesis:", re.search(r"(\d+ generated.*)", done.stdout)[1])
    errors = [line for line in service.log_lines() if line["level"] == "ERROR"]
    assert errors == []
