"""``vllm``'s API server on a CPU with our connector, as a process group of its own, and the tiny targets it serves."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from service import ROOT, Service, clean_environment, free_port, wait_until

VOCAB = 1024


def installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def need_vllm() -> None:
    """Skips a module where vLLM is missing, without importing it here."""
    if not installed("vllm"):
        reason = "vLLM is not installed here; run `make test-vllm`, which makes an environment for it"
        pytest.skip(reason, allow_module_level=True)


def make_target(directory: Path, family: str) -> Path:
    """Writes a random target of four layers in float32: ``llama`` or ``qwen3``."""
    import torch
    import transformers

    config_class = {"llama": transformers.LlamaConfig, "qwen3": transformers.Qwen3Config}[family]
    config = config_class(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
    )
    torch.manual_seed(3)
    transformers.AutoModelForCausalLM.from_config(config).float().save_pretrained(directory)
    return directory


class VllmServer:
    """One server; ``close`` ends all of its processes."""

    def __init__(
        self, directory: Path, target: Path, layer_ids: list, *arguments: str, **extra: object
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.socket_path = directory / "worker.sock"
        self.log_path = directory / "vllm.log"
        extra_config = {"socket_path": str(self.socket_path), "api_url": self.url} | extra
        hf_config = {"eagle_aux_hidden_state_layer_ids": layer_ids}
        speculative = {
            "method": "extract_hidden_states",
            "num_speculative_tokens": 1,
            "draft_model_config": {"hf_config": hf_config},
        }
        transfer = {
            "kv_connector": "DraftportConnector",
            "kv_role": "kv_producer",
            "kv_connector_module_path": "app.integrations.vllm.connector",
            "kv_connector_extra_config": extra_config,
        }
        given = dict(zip(arguments[::2], arguments[1::2], strict=True)) if arguments else {}
        defaults = {
            "--model": str(target),
            "--served-model-name": "tiny",
            "--host": "127.0.0.1",
            "--port": str(self.port),
            "--dtype": "float32",
            "--max-model-len": "1024",
            "--max-num-seqs": "16",
            "--max-num-batched-tokens": "512",
            "--speculative-config": json.dumps(speculative),
            "--kv-transfer-config": json.dumps(transfer),
        }
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
        command += ["--skip-tokenizer-init", "--enforce-eager", "--disable-uvicorn-access-log"]
        for name, value in (defaults | given).items():
            command += [name] if value == "" else [name, value]
        environment = clean_environment(directory) | {
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(directory),
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "OMP_NUM_THREADS": "1",
        }
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.http = httpx.Client(base_url=self.url, timeout=120)

    def healthy(self) -> bool:
        assert self.process.poll() is None, self.log()[-4000:]
        try:
            return self.http.get("/health").status_code == 200
        except httpx.TransportError:
            return False

    def wait_ready(self) -> VllmServer:
        wait_until(self.healthy, 150, 0.2)
        return self

    def complete(self, token_ids: list[int], *, max_tokens: int = 1, **params: object) -> dict:
        """``/v1/completions``; what it says about the prompt's rows (``{}``: nothing)."""
        body = {
            "model": "tiny",
            "prompt": token_ids,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "kv_transfer_params": {"draftport": params},
        }
        answer = self.http.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        return (answer.json().get("kv_transfer_params") or {}).get("draftport", {})

    def kill(self) -> None:
        """SIGKILL to all of its processes, as a machine's out-of-memory killer might."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        self.http.close()
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(30)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")


class Reference:
    """Plain transformers: rows of a lone forward at capture points, side by side."""

    def __init__(self, directory: Path) -> None:
        import torch
        import transformers

        self._torch = torch
        self._model = (
            transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval().model
        )
        self._seen: dict[int, object] = {}
        layers = self._model.layers
        for index, layer in enumerate(layers):
            layer.register_forward_pre_hook(self._input_of(index), with_kwargs=True)
        layers[-1].register_forward_hook(self._output_of(len(layers)))

    def rows(self, prompt: list[int], points: list[int]):
        with self._torch.inference_mode():
            self._model(input_ids=self._torch.tensor([prompt]), use_cache=False)
        return self._torch.cat([self._seen[point] for point in points], -1)

    def _input_of(self, point):
        def hook(_module, args, kwargs):
            self._seen[point] = (args[0] if args else kwargs["hidden_states"])[0].clone()

        return hook

    def _output_of(self, point):
        def hook(_module, _args, output):
            self._seen[point] = (output[0] if isinstance(output, tuple) else output)[0].clone()

        return hook


class OwnService(Service):
    """``draftport serve`` by the Python that has Draftport's dependencies, which vLLM's environment has not."""

    def __init__(self, directory: Path, **settings: object) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        super().__init__(directory, **settings)

    def command(self) -> list[str]:
        return [os.environ.get("DRAFTPORT_PYTHON", sys.executable), *super().command()[1:]]
