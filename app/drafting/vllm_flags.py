"""The flags of ``vllm serve`` that bear on drafting, as data.

Source: vLLM 0.33: vllm/engine/arg_utils.py, vllm/utils/argparse_utils.py, vllm/config/speculative.py.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

Kind: TypeAlias = Literal["text", "int", "json", "bool"]


class Taken(Struct, frozen=True):
    """A flag that is read: its type and where it goes."""

    kind: Kind
    field: str | None = None
    load_field: str | None = None


TAKEN_FLAGS: dict[str, Taken] = {
    "model": Taken("text", "target"),
    "model-tag": Taken("text", "target"),
    "revision": Taken("text", "target_revision"),
    "dtype": Taken("text", "dtype"),
    "speculative-config": Taken("json"),
    "tensor-parallel-size": Taken("int", "tensor_parallel_size"),
    "pipeline-parallel-size": Taken("int", "pipeline_parallel_size"),
    "max-num-batched-tokens": Taken("int", "max_num_batched_tokens"),
    "max-num-seqs": Taken("int", "max_num_seqs"),
    "enable-prefix-caching": Taken("bool", "enable_prefix_caching"),
    "load-format": Taken("text", load_field="load_format"),
    "download-dir": Taken("text", load_field="download_dir"),
    "safetensors-load-strategy": Taken("text", load_field="safetensors_load_strategy"),
    "safetensors-prefetch-num-threads": Taken("int", load_field="safetensors_prefetch_num_threads"),
    "safetensors-prefetch-block-size": Taken("int", load_field="safetensors_prefetch_block_size"),
    "model-loader-extra-config": Taken("json", load_field="model_loader_extra_config"),
    "pt-load-map-location": Taken("text", load_field="pt_load_map_location"),
    "use-tqdm-on-load": Taken("bool", load_field="use_tqdm_on_load"),
}

SHORT_FLAGS = {
    "-tp": "tensor-parallel-size",
    "-pp": "pipeline-parallel-size",
    "-dp": "data-parallel-size",
    "-sc": "speculative-config",
    "-q": "quantization",
    "-ep": "enable-expert-parallel",
}

TAKEN_SPECULATIVE: dict[str, Taken] = {
    "model": Taken("text", "draft"),
    "revision": Taken("text", "draft_revision"),
    "method": Taken("text", "method"),
    "num_speculative_tokens": Taken("int", "num_speculative_tokens"),
    "draft_tensor_parallel_size": Taken("int", "draft_tensor_parallel_size"),
    "draft_load_config": Taken("json", "draft_load_config"),
}

# Flags without a value whose next word must not be taken for one.
BOOLEAN_FLAGS = frozenset(
    {
        "enforce-eager",
        "trust-remote-code",
        "async-scheduling",
        "headless",
        "help",
        "version",
        "h",
        "v",
        "data-parallel-hybrid-lb",
        "data-parallel-external-lb",
        "calculate-kv-scales",
        "language-model-only",
        "multi-step-stream-outputs",
    }
)
BOOLEAN_PREFIXES = ("no-", "enable-", "disable-", "skip-", "return-", "use-", "allow-credentials")

COMMAND_MODULES = frozenset(
    {"vllm.entrypoints.cli.main", "vllm.entrypoints.cli", "vllm.entrypoints.cli.serve"}
)
