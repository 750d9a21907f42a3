"""``draftport plan`` as a roll-out's gate: exit status 0, 1 or 2, a table for people, JSON for programs."""

import json
import shlex

import pytest

TARGET = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 1024, "num_hidden_layers": 28,
    "vocab_size": 151936, "torch_dtype": "bfloat16",
}  # fmt: skip
DRAFT = {
    "architectures": ["DFlashDraftModel"], "hidden_size": 1024, "num_hidden_layers": 4, "vocab_size": 151936,
    "block_size": 16, "dflash_config": {"mask_token_id": 151669, "target_layer_ids": [1, 13, 25]},
}  # fmt: skip
SIZES = ("--num-speculative-tokens", "16", "--max-num-seqs", "8", "--max-num-batched-tokens", "2048")


@pytest.fixture
def pair(tmp_path):
    """``pair(**changes of the draft) -> ["--target", ..., "--draft", ...]``."""

    def write(**changes):
        for name, config in (("target", TARGET), ("draft", DRAFT | changes)):
            directory = tmp_path / name
            directory.mkdir(exist_ok=True)
            (directory / "config.json").write_text(json.dumps(config))
        return ["--target", str(tmp_path / "target"), "--draft", str(tmp_path / "draft")]

    return write


def codes(done):
    return {finding["code"]: finding["severity"] for finding in json.loads(done.stdout)["findings"]}


def test_a_sound_pair_is_exit_status_0(cli, pair):
    done = cli("plan", *pair(), *SIZES)
    assert (done.returncode, done.stderr) == (0, "")
    assert "this pair is sound" in done.stdout
    assert "151669 from dflash_config.mask_token_id" in done.stdout
    assert "capture points 2, 14, 26" in done.stdout
    document = json.loads(cli("plan", *pair(), *SIZES, "--json").stdout)
    assert document["ok"]
    assert document["hidden_states"]["bytes_per_token"] == 3 * 1024 * 2
    assert document["ignored_vllm_args"] == []


def test_an_engine_that_hangs_is_exit_status_1(cli, pair):
    hangs = ("--pp", "2", "--tp", "8", "--load-format", "fastsafetensors", "--engine", "vllm==0.24.0")
    done = cli("plan", *pair(), *SIZES, *hangs)
    assert done.returncode == 1
    assert "pp_guard_missing" in done.stdout
    assert "this pair will not work" in done.stdout
    assert done.stderr == ""
    repaired = [word if word != "fastsafetensors" else "safetensors" for word in hangs]
    assert "pp_guard_missing" not in codes(cli("plan", *pair(), *SIZES, *repaired, "--json"))


def test_a_missing_mask_token_is_a_finding(cli, pair):
    done = cli("plan", *pair(dflash_config={"target_layer_ids": [1]}), *SIZES, "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["mask_token"]["mask_token_id"] is None
    assert codes(done)["mask_token_missing"] == "error"


def test_what_people_already_have(cli, pair, tmp_path):
    pair()
    speculative = {"model": str(tmp_path / "draft"), "method": "dflash", "num_speculative_tokens": 16}
    command = shlex.join(
        ["vllm", "serve", str(tmp_path / "target"), "-tp", "4", "--speculative-config", json.dumps(speculative),
         "--max-model-len", "4096"]
    )  # fmt: skip
    done = cli("plan", "--from-vllm-args", command, "--json")
    document = json.loads(done.stdout)
    assert (document["method"], document["placement"]["draft_ranks"]) == ("dflash", [0, 1, 2, 3])
    assert document["ignored_vllm_args"] == ["--max-model-len"]
    contradicts = cli("plan", "--from-vllm-args", command, "--tp", "2")
    assert contradicts.returncode == 2
    assert "tensor_parallel_size" in contradicts.stderr


def test_a_config_file_and_standard_input_are_models_too(cli, pair, tmp_path):
    pair()
    done = cli(
        "plan", "--target", tmp_path / "target" / "config.json", "--draft", "-", stdin=json.dumps(DRAFT)
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((), "--target"),
        (("--target", "/nowhere"), "no such"),
        (("--target", "-", "--method", "magic"), "magic"),
        (("--target", "-", "--engine", "llama.cpp"), "engine"),
        (("--from-vllm-args", "vllm serve 'x"), "quot"),
        (("--from-vllm-args", "make coffee"), "vllm serve"),
        (("--target", "-", "--load-format", ""), ""),
    ],
)
def test_what_cannot_be_answered_is_exit_status_2(cli, arguments, reason):
    done = cli("plan", *arguments, stdin="{}")
    assert "Traceback" not in done.stderr
    if reason:
        assert done.returncode == 2, done
        assert reason in done.stderr.lower()
        assert done.stdout == ""
