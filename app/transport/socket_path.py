"""Where the worker's socket is when nobody says otherwise: the same rule for the service and for readers."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

SOCKET_NAME = "worker.sock"


def default_runtime_dir() -> Path:
    """``$XDG_RUNTIME_DIR/draftport``, else a per-user directory below the temporary directory."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    if base:
        return Path(base) / "draftport"
    return Path(tempfile.gettempdir()) / f"draftport-{os.getuid()}"


def default_socket_path() -> Path:
    """The socket below ``$DRAFTPORT_RUNTIME_DIR``, else below ``default_runtime_dir``."""
    configured = os.environ.get("DRAFTPORT_RUNTIME_DIR")
    return (Path(configured) if configured else default_runtime_dir()) / SOCKET_NAME
