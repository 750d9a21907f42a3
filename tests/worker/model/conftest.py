"""Tiny targets of many architectures, and the plain transformers forwards that captured rows are compared with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from app.transport.worker_config import WorkerConfig
from app.worker.demo import demo_target
from app.worker.inspect_target import inspect_target

_COMMON = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "pad_token_id": 0,
}
_MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_LINEAR = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
_MLA = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_group": 2,
    "topk_group": 1,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "head_dim": 8,
    "num_key_value_heads": 4,
    "first_k_dense_replace": 1,
}
_V4 = {
    "vocab_size": 300,
    "hidden_size": 64,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "q_lora_rank": 32,
    "num_experts_per_tok": 2,
    "n_routed_experts": 4,
    "max_position_embeddings": 1024,
    "sliding_window": 16,
    "o_groups": 2,
    "o_lora_rank": 16,
    "index_n_heads": 2,
    "index_head_dim": 32,
    "index_topk": 4,
    "hc_mult": 4,
    "layer_types": [
        "sliding_attention",
        "compressed_sparse_attention",
        "heavily_compressed_attention",
        "compressed_sparse_attention",
    ],
    "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 16},
    "mlp_layer_types": ["hash_moe", "moe", "moe", "moe"],
    "partial_rotary_factor": 0.25,
    "pad_token_id": 0,
}
_VISION = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
_SLIDING = {"sliding_window": 16, "layer_types": ["sliding_attention"] * 3 + ["full_attention"]}
_HYBRID = {"layer_types": ["linear_attention"] * 3 + ["full_attention"]}

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "qwen3": _COMMON,
    "llama": _COMMON,
    "gemma3_text": _COMMON | _SLIDING,
    "gemma3": {"text_config": _COMMON | _SLIDING, "vision_config": _VISION},
    "qwen3_moe": _COMMON | _MOE | {"decoder_sparse_step": 1, "mlp_only_layers": []},
    "gpt_oss": _COMMON
    | {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16}
    | {"layer_types": ["sliding_attention", "full_attention"] * 2},
    "qwen3_next": _COMMON | _MOE | _LINEAR | _HYBRID | {"shared_expert_intermediate_size": 32},
    "falcon_h1": _COMMON | {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 1},
    "deepseek_v3": _COMMON | _MLA,
    "deepseek_v4": _V4,
    # No rows of a causal model: everything attends to everything.
    "bidirectional": _COMMON | {"use_bidirectional_attention": True},
    "qwen4_exp_text": _COMMON
    | _MOE
    | _LINEAR
    | {"shared_expert_intermediate_size": 32, "hc_count": 2, "hc_lowrank": 8, "indexer_n_heads": 4}
    | {"indexer_kv_heads": 1, "indexer_head_dim": 16, "indexer_budget": 32, "indexer_compress_ratio": 4}
    | {"layer_types": ["linear_attention", "indexed_attention"] * 2},
}
_MODEL_TYPES = {"bidirectional": "gemma3_text"}


@pytest.fixture(autouse=True, scope="session")
def _single_thread() -> None:
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()


def _random_model(name: str) -> Any:
    config = transformers.CONFIG_MAPPING[_MODEL_TYPES.get(name, name)](**ARCHITECTURES[name])
    torch.manual_seed(0)
    loader = transformers.AutoModelForCausalLM if _with_head(config) else transformers.AutoModel
    model = loader.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            # Every kind of parameter gets values of its own, so that a wrong or missing one shows.
            noise = torch.randn_like(parameter) * 0.1
            parameter.copy_(noise if parameter.dim() > 1 else parameter + noise)
    return model


def _with_head(config: Any) -> bool:
    return type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING


class Targets:
    """Random checkpoints by architecture, loaded by the worker or, as the reference, by transformers alone."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._references: dict[Path, Any] = {}

    def checkpoint(self, name: str) -> Path:
        """Saves a random model of an architecture, once, and tells where."""
        directory = self._root / name
        if not directory.exists():
            _random_model(name).save_pretrained(directory)
        return directory

    def reference(self, directory: Path) -> Any:
        """The whole checkpoint as transformers itself loads it: with its head, where it has one."""
        if directory not in self._references:
            with_head = _with_head(transformers.AutoConfig.from_pretrained(directory))
            loader = transformers.AutoModelForCausalLM if with_head else transformers.AutoModel
            self._references[directory] = loader.from_pretrained(directory).eval()
        return self._references[directory]

    @staticmethod
    def load(directory: Path, **settings: Any) -> tuple[Any, Any]:
        """Inspects and loads a target with the given settings: its plan and the target."""
        plan = inspect_target(WorkerConfig(target=str(directory), **{"device": "cpu", **settings}))
        return plan, plan.load(lambda _read, _total: None)


class Prompting:
    """Prompts, their captured rows, and how far these are from others."""

    @staticmethod
    def prompts(lengths: list[int], vocab_size: int = 300, seed: int = 1) -> list[list[int]]:
        generator = torch.Generator().manual_seed(seed)
        return [torch.randint(vocab_size, (length,), generator=generator).tolist() for length in lengths]

    @staticmethod
    def run(plan: Any, target: Any, prompts: list[list[int]], *, batched: bool) -> list[torch.Tensor]:
        """Runs prompts into rows that were filled with NaN, so that an unwritten one shows."""
        dtype = getattr(torch, plan.dtype)
        rows = [torch.full((len(prompt), plan.width), float("nan"), dtype=dtype) for prompt in prompts]
        if batched:
            target.run_step(prompts, rows)
        else:
            for prompt, out in zip(prompts, rows, strict=True):
                target.run_step([prompt], [out])
        return rows

    @staticmethod
    def difference(rows: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
        """Largest difference of any prompt's rows, relative to the largest element of that prompt's expected rows."""
        return max(
            float((got.float() - want.float()).abs().max() / want.float().abs().max())
            for got, want in zip(rows, expected, strict=True)
        )


@pytest.fixture(scope="session")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Targets:
    return Targets(tmp_path_factory.mktemp("targets"))


@pytest.fixture(scope="session")
def prompting() -> Prompting:
    return Prompting()


@pytest.fixture(scope="session")
def demo_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return demo_target(str(tmp_path_factory.mktemp("cache")))
