"""``python -m app.integrations.speculators MODULE ...`` runs one of speculators' modules with our backend registered.

For example ``python -m app.integrations.speculators speculators.train --hidden-states-backend draftport ...``:
speculators collects the backends' options when it is imported, so ours must be there before.
"""

from __future__ import annotations

import runpy
import sys


def main() -> None:
    """Runs the module named by the first argument as ``python -m`` would."""
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(f"usage: python -m {__package__} MODULE [ARGUMENT ...]   (e.g. speculators.train)")
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
