"""The command line as people and pipelines use it: answers on stdout, reasons on stderr, exit status 0, 1 or 2."""

import json
import re
import socket
import stat

import pytest
from service import free_port

DFLASH = {"architectures": ["DFlashDraftModel"], "dflash_config": {"mask_token_id": 7}, "vocab_size": 100}


@pytest.fixture
def directory(tmp_path):
    path = tmp_path / "drafter"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(DFLASH))
    return path


def test_mask_token_of_a_directory(cli, directory):
    done = cli("mask-token", directory)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"mask_token_id +7\b", done.stdout)
    assert "dflash_config.mask_token_id" in done.stdout
    document = json.loads(cli("mask-token", directory, "--json").stdout)
    assert (document["mask_token_id"], document["method"]) == (7, "dflash")


def test_mask_token_of_standard_input_with_a_target_that_is_too_small(cli, tmp_path):
    target = tmp_path / "target"
    target.mkdir()
    (target / "config.json").write_text('{"vocab_size": 5, "model_type": "qwen3"}')
    done = cli("mask-token", "-", "--target", target, "--json", stdin=json.dumps(DFLASH))
    errors = [one["code"] for one in json.loads(done.stdout)["findings"] if one["severity"] == "error"]
    assert errors
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("config", "code"), [({}, "mask_token_missing"), ({"ptd_token_id": None}, "mask_token_invalid")]
)
def test_no_mask_token_is_exit_status_1(cli, config, code):
    done = cli("mask-token", "-", stdin=json.dumps(config))
    assert done.returncode == 1
    assert done.stderr.startswith("draftport: ")
    document = json.loads(cli("mask-token", "-", "--json", stdin=json.dumps(config)).stdout)
    assert document["code"] == code


@pytest.mark.parametrize(
    ("arguments", "stdin", "reason"),
    [
        (("mask-token", "-"), "not json", "JSON"),
        (("mask-token", "-"), "[1]", "object"),
        (("mask-token", "-"), "[" * 100_000, "nested"),
        (("mask-token", "/nowhere"), "", "no such"),
        (("mask-token", "org/name"), "", "offline|cache"),
        (("mask-token", "-", "--engine", "nope"), "{}", "engine"),
        (("load-config", "--load-format", "auto", "--engine", "nope"), "", "engine"),
        (("load-config", "--load-format", "auto", "--method", "magic"), "", "method"),
        (("hidden-states", "--prompt", "x", "--socket", "/nowhere/worker.sock"), "", "worker"),
    ],
)
def test_what_cannot_be_answered_is_exit_status_2_with_one_line_why(cli, arguments, stdin, reason):
    done = cli(*arguments, stdin=stdin)
    assert done.returncode == 2, done
    assert re.search(reason, done.stderr, re.IGNORECASE), done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_load_config_says_what_the_draft_gets(cli):
    done = cli("load-config", "--load-format", "fastsafetensors", "--pp", "2", "--json")
    document = json.loads(done.stdout)
    assert document["draft"]["load_format"] == "auto"
    assert document["reason"] == "pp_collective_loader"
    assert done.returncode == 0
    assert cli("load-config", "--load-format", "fastsafetensors", "--pp", "2").returncode == 0


def test_an_engine_that_hangs_is_exit_status_1(cli):
    done = cli("load-config", "--load-format", "fastsafetensors", "--pp", "2", "--engine", "vllm==0.24.0")
    assert done.returncode == 1
    assert "error" in done.stdout


def test_hidden_states_prints_shape_dtype_and_a_summary(cli, service):
    done = cli("hidden-states", "--prompt", "the quick brown fox", "--socket", service.socket_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"dtype +float32", done.stdout)
    [row] = json.loads(
        cli("hidden-states", "--prompt", "a b", "--json", "--socket", service.socket_path).stdout
    )
    assert row["shape"] == [len(row["token_ids"]), service.http.get("/v1/target").json()["hidden_size"]]
    assert row["min"] <= row["mean"] <= row["max"]


def test_healthcheck(cli, service):
    assert cli("healthcheck", PORT=str(service.port)).returncode == 0
    assert cli("healthcheck", "--url", f"{service.url}/readyz/worker").returncode == 0
    assert cli("healthcheck", PORT=str(free_port())).returncode == 1


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"PORT": "http"}, "DRAFTPORT_PORT"),
        ({"CAPTURE": "middle"}, "DRAFTPORT_CAPTURE"),
        ({"AUX_LAYER_IDS": "2,x"}, "DRAFTPORT_AUX_LAYER_IDS"),
        ({"TAGET": "org/name"}, "DRAFTPORT_TAGET"),
        ({"TLS_CERT_FILE": "/nowhere"}, "TLS_KEY_FILE"),
        ({"TLS_CERT_FILE": "/nowhere", "TLS_KEY_FILE": "/nowhere"}, "TLS"),
        ({"TOKEN_FILE": "/nowhere"}, "token"),
        ({"SLOTS": "0"}, "DRAFTPORT_SLOTS"),
    ],
)
def test_settings_that_do_not_fit_are_told_at_the_start(cli, settings, reason):
    done = cli("serve", WORKER="off", **({"PORT": str(free_port())} | settings))
    assert done.returncode not in (0, None)
    assert re.search(reason, done.stderr), done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_in_use_is_told(cli):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = cli("serve", "--port", port, "--worker", "off")
    assert done.returncode != 0
    assert str(port) in done.stderr
    assert "Traceback" not in done.stderr


def test_hub_settings_that_would_lend_a_token_to_strangers_are_refused(cli, tmp_path):
    hub = tmp_path / "hf"
    hub.mkdir()
    (hub / "token").write_text("hf_secret")
    done = cli("serve", "--worker", "off", "--hub", "on", "--port", free_port())
    assert done.returncode != 0
    assert "DRAFTPORT_HUB_ALLOW" in done.stderr
    assert "hf_secret" not in done.stderr


def test_every_command_has_help(cli):
    listed = cli("--help").stdout
    for command in ("serve", "worker", "mask-token", "load-config", "plan", "hidden-states", "healthcheck"):
        assert command in listed
        assert cli(command, "--help").returncode == 0


def test_a_runtime_directory_that_others_may_write_is_refused(cli, tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    done = cli("worker", RUNTIME_DIR=str(shared))
    assert done.returncode not in (0, None)
    assert "Traceback" not in done.stderr
    assert stat.S_IMODE(shared.stat().st_mode) == 0o777
