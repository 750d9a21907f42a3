import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def content(service, tmp_path_factory):
    """The file with prompts and their rows."""
    from content import write_content

    path = tmp_path_factory.mktemp("chaos") / "content.npz"
    [config] = Path(service.environment["DRAFTPORT_CACHE_DIR"]).rglob("config.json")
    write_content(path, config.parent, seed=5)
    return path
