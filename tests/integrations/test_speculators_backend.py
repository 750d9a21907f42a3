"""The backend ``draftport`` in the published hs-connectors, fed by our own worker: no vLLM is needed for that."""

import argparse
import contextlib
import os
import pickle
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("hs_connectors", reason="hs-connectors is not installed here; run `make test-vllm`")

import torch
from hs_connectors import HiddenStatesBackend, HiddenStatesTransfer
from service import ROOT
from vllm_server import OwnService

import app.integrations.speculators
from app.integrations.speculators.rest_source import DownloadError
from app.reader import ConnectionLostError, Region, RemoteError

POINTS = [3, 0, 2]


@pytest.fixture(scope="module")
def exporter(targets, tmp_path_factory):
    """Draftport with a worker that captures three layers, ready."""
    directory = tmp_path_factory.mktemp("exporter")
    token_file = directory / "token"
    token_file.write_text("a secret")
    running = OwnService(
        directory,
        TARGET=str(targets("llama")),
        AUX_LAYER_IDS="3,0,2",
        DTYPE="float32",
        TOKEN_FILE=str(token_file),
        LOG_FORMAT="json",
    )
    running.token_file = token_file
    yield running.wait_worker()
    running.close()


@pytest.fixture
def lease(exporter):
    """A lease that somebody else holds, as vLLM's connector would."""
    with Region.attach(exporter.socket_path) as region:
        [taken] = region.forward([[5, 6, 7, 8]], timeout_s=60)
        yield taken


def backend():
    return HiddenStatesBackend.registry["draftport"]


@pytest.fixture
def transfer_of(exporter):
    """``transfer_of("socket")`` or ``("url")``; closed with the test."""
    made = []

    def make(how):
        made.append(a_transfer(exporter, how))
        return made[-1]

    yield make
    for one in made:
        one.close()


def a_transfer(exporter, how):
    parser = argparse.ArgumentParser()
    backend().add_train_args(parser)
    given = {
        "socket": ["--draftport-socket", str(exporter.socket_path)],
        "url": ["--draftport-url", exporter.url, "--draftport-token-file", str(exporter.token_file)],
    }[how]
    return backend().from_train_args(parser.parse_args(given), "/nowhere")


def check_sample(sample, lease, references):
    assert set(sample) == {"hidden_states", "token_ids"}
    assert sample["token_ids"].dtype == torch.int64
    assert sample["token_ids"].tolist() == lease.descriptor.token_ids
    assert sample["hidden_states"].shape == (4, len(POINTS), 64)
    wanted = references("llama").rows(lease.descriptor.token_ids, POINTS)
    assert (sample["hidden_states"].flatten(1) - wanted).abs().max() < 1e-5


def test_it_is_registered_once_and_meets_the_base_class():
    assert backend() is app.integrations.speculators.DraftportBackend
    assert issubclass(backend(), HiddenStatesBackend)
    assert set(HiddenStatesBackend.registry) >= {"file", "fp8", "mooncake", "draftport"}


def test_its_options_go_into_one_parser_with_all_others():
    parser = argparse.ArgumentParser()
    for one in HiddenStatesBackend.registry.values():
        one.add_train_args(parser)
        one.add_launch_args(parser)
    parser.parse_args(["--draftport-slots", "4", "--draftport-url", "http://x"])


def test_what_vllm_is_told():
    parser = argparse.ArgumentParser()
    backend().add_launch_args(parser)
    told = backend().build_kv_transfer_config(parser.parse_args(["--draftport-rows-per-slot", "4096"]))
    assert told == {
        "kv_connector": "DraftportConnector",
        "kv_role": "kv_producer",
        "kv_connector_module_path": "app.integrations.vllm.connector",
        "kv_connector_extra_config": {"slots": 8, "rows_per_slot": 4096},
    }


@pytest.mark.parametrize("how", ["socket", "url"])
def test_a_sample(transfer_of, lease, references, how):
    transfer = transfer_of(how)
    assert isinstance(transfer, HiddenStatesTransfer)
    transfer.setup()
    assert transfer.get_cached(0) is None
    params = {"handle": lease.lease_id, "draftport": {"lease_id": lease.lease_id, "num_tokens": 4}}
    sample = transfer.get_generated(params)
    check_sample(sample, lease, references)
    sample["hidden_states"].zero_()  # its own: training may write to it
    check_sample(transfer.get_generated(params), lease, references)
    transfer.delete(lease.lease_id)
    transfer.delete(lease.lease_id)
    lease.check()


@pytest.mark.parametrize("how", ["socket", "url"])
def test_no_lease(transfer_of, how):
    transfer = transfer_of(how)
    assert transfer.get_generated({}) is None
    with pytest.raises((RemoteError, DownloadError)) as failed:
        transfer.get_generated({"handle": "0" * 32})
    assert failed.value.code == "lease_not_found"
    transfer.delete("0" * 32)


@pytest.mark.parametrize("how", ["socket", "url"])
def test_it_goes_into_workers_of_a_data_loader(transfer_of, lease, references, how):
    """Spawned ones get it by pickle; forked ones must not use their parent's connection."""
    transfer = transfer_of(how)
    transfer.setup()
    with contextlib.closing(pickle.loads(pickle.dumps(transfer))) as unpickled:
        check_sample(unpickled.get_generated({"handle": lease.lease_id}), lease, references)
    if how == "socket":
        child = os.fork()
        if not child:
            found = transfer.get_generated({"handle": lease.lease_id})
            os._exit(0 if found["token_ids"].tolist() == [5, 6, 7, 8] else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_an_exporter_that_starts_anew(start_stub, stub):
    """One error, then the next sample comes from the new one: speculators' own retries need no more."""
    from app.integrations.speculators.backend import DraftportTransfer
    from app.integrations.speculators.slab_source import SlabSource

    first = start_stub()
    transfer = DraftportTransfer(SlabSource(str(first.path)))
    transfer.setup()
    first.kill()
    with pytest.raises(ConnectionLostError):
        transfer.get_generated({"handle": "0" * 32})
    first.path.unlink(missing_ok=True)
    again = start_stub()
    again.path.rename(first.path)
    with contextlib.closing(transfer), pytest.raises(RemoteError):
        transfer.get_generated({"handle": "0" * 32})


def test_their_scripts_see_it(tmp_path):
    """Through the launcher, which registers the backend before speculators looks."""
    if not __import__("importlib.util").util.find_spec("speculators"):
        pytest.skip("speculators is not installed here; run `make test-vllm`")
    script = tmp_path / "look.py"
    script.write_text(
        textwrap.dedent(
            """
            from speculators.train.config.resolution import _BACKEND_DESTS
            assert {"draftport_socket", "draftport_url", "draftport_token_file"} <= _BACKEND_DESTS
            """
        )
    )
    command = [sys.executable, "-m", "app.integrations.speculators", "look"]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{tmp_path}"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
