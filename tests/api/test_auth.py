"""The bearer token: needed for everything but the probes, read again when its file changes."""

import pytest
from service import wait_until

PROBES = ("/livez", "/live", "/startupz", "/readyz", "/ready", "/health", "/healthz")


@pytest.fixture
def guarded(start_service, tmp_path):
    token_file = tmp_path / "token"
    token_file.write_text("first-secret\n")
    service = start_service(WORKER="off", TOKEN_FILE=token_file)
    service.token_file = token_file
    return service


def ask(service, token=None, scheme="Bearer"):
    headers = {} if token is None else {"authorization": f"{scheme} {token}"}
    return service.http.post("/v1/mask-token", json={"config": {"mask_token_id": 5}}, headers=headers)


def test_without_the_token_only_the_probes_answer(guarded, is_problem):
    for path in PROBES:
        assert guarded.http.get(path).status_code == 200
    for path in ("/metrics", "/version", "/docs", "/openapi.json", "/v1/target", "/nowhere"):
        document = guarded.http.get(path)
        is_problem(document, 401, "unauthorized")
        assert document.headers["www-authenticate"].startswith("Bearer")
    is_problem(ask(guarded), 401, "unauthorized")


@pytest.mark.parametrize(
    ("token", "scheme"),
    [("first-secre", "Bearer"), ("first-secret2", "Bearer"), ("-", "Bearer"), ("first-secret", "Basic"), ("x" * 60_000, "Bearer")],
)  # fmt: skip
def test_what_is_not_the_token(guarded, token, scheme):
    assert ask(guarded, token, scheme).status_code in (400, 401, 431)
    assert ask(guarded, "first-secret").status_code == 200
    assert ask(guarded, "first-secret", "bearer").status_code == 200


def test_a_replaced_token_counts_without_a_restart(guarded):
    assert ask(guarded, "first-secret").status_code == 200
    fresh = guarded.token_file.with_suffix(".new")
    fresh.write_text("second-secret")
    fresh.replace(guarded.token_file)
    wait_until(lambda: ask(guarded, "second-secret").status_code == 200, 10)
    assert ask(guarded, "first-secret").status_code == 401
    guarded.token_file.unlink()
    assert ask(guarded, "second-secret").status_code == 200, "a secret that is being replaced is no open door"
    assert "secret" not in guarded.log()


def test_an_empty_token_file_starts_nothing(start_service, tmp_path):
    empty = tmp_path / "token"
    empty.write_text("\n")
    service = start_service(WORKER="off", TOKEN_FILE=empty, wait=False)
    assert service.process.wait(30) != 0
    assert "token" in service.log()
    assert "Traceback" not in service.log()
