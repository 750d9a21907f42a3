"""``make gpu-test``: the GPU's part of these tests. Exit status 77 where there is no GPU that can share memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from app.transport.cuda_ipc import probe_support

SKIPPED = 77
HERE = Path(__file__).parent


def main() -> int:
    reason = probe_support()
    if reason is not None:
        sys.stderr.write(f"skipped: {reason}\n")
        return SKIPPED
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-v", str(HERE)]
    return subprocess.run(command, check=False, timeout=180).returncode


if __name__ == "__main__":
    raise SystemExit(main())
