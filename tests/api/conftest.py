import json

import pytest
from service import Service

DFLASH = {
    "architectures": ["DFlashDraftModel"],
    "dflash_config": {"mask_token_id": 7, "target_layer_ids": [1, 2]},
    "vocab_size": 100,
}


@pytest.fixture(scope="session")
def metadata(tmp_path_factory):
    """A service that answers metadata only, with models below ``metadata.models``."""
    directory = tmp_path_factory.mktemp("metadata")
    models = directory / "models"
    (models / "org" / "drafter").mkdir(parents=True)
    (models / "org" / "drafter" / "config.json").write_text(json.dumps(DFLASH))
    (models / "empty").mkdir()
    (models / "broken").mkdir()
    (models / "broken" / "config.json").write_text("{")
    (models / "list").mkdir()
    (models / "list" / "config.json").write_text("[]")
    (directory / "secret").mkdir()
    (directory / "secret" / "config.json").write_text(json.dumps(DFLASH))
    (models / "out").symlink_to(directory / "secret")
    (models / "file-out").mkdir()
    (models / "file-out" / "config.json").symlink_to(directory / "secret" / "config.json")
    running = Service(directory, WORKER="off", MODEL_ROOTS=models, LOG_FORMAT="json")
    running.models = models
    running.drafter = str(models / "org" / "drafter")
    yield running
    running.close()


@pytest.fixture
def is_problem():
    """``is_problem(answer, status, code) -> document``: an error as every error is."""

    def check(answer, status, code):
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        document = answer.json()
        assert document["code"] == code, document
        assert document["status"] == status
        assert document["type"].endswith(code)
        assert document["message"] == document["detail"]
        assert document["detail"].endswith(".")
        assert document["title"]
        assert document["instance"] == answer.request.url.path
        assert answer.headers["x-request-id"]
        for word in ("Traceback", "site-packages", "pydantic", "msgspec"):
            assert word not in answer.text
        return document

    return check
