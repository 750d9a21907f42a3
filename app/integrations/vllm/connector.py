"""The KV connector that vLLM loads by ``kv_connector_module_path``, for its method ``extract_hidden_states``.

vLLM makes one of it in the scheduler's process and one in each worker's. Source of the interface: vLLM 0.32,
``vllm/distributed/kv_transfer/kv_connector/v1/base.py``, which vLLM calls experimental.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vllm.config import get_layers_from_vllm_config
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    SupportsHMA,
)
from vllm.distributed.parallel_state import get_pp_group, get_tensor_model_parallel_rank
from vllm.v1.kv_cache_interface import HiddenStateCacheSpec

from .layer_order import asked_points, stored_positions
from .prompt_tracker import PromptTracker
from .row_source import CacheSource
from .settings import connector_settings
from .step import Step
from .wide_source import WideSource, noted_target
from .worker_side import WorkerSide, exporter_here

METHOD = "extract_hidden_states"


@dataclass
class StepMetadata(KVConnectorMetadata):  # type: ignore[misc]  # vLLM is no dependency
    """What goes from the scheduler to the workers with each step."""

    step: Step = field(default_factory=Step)


class DraftportConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]  # vLLM is no dependency
    """Exports every prompt's hidden states into a Draftport slab.

    Raises:
        ValueError: another method than ``extract_hidden_states``, capture points that vLLM would not capture, or a
            setting that does not fit.
    """

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        self._settings = connector_settings(self._kv_transfer_config.kv_connector_extra_config)
        self._points = () if self._wide else _points_of(vllm_config)
        self._worker: WorkerSide | None = None
        self._tracker: PromptTracker | None = None
        if role == KVConnectorRole.SCHEDULER:
            group = None if self._wide else _hidden_states_group(kv_cache_config)
            spec = None if group is None else kv_cache_config.kv_cache_groups[group].kv_cache_spec
            block_size = 0 if spec is None else spec.block_size
            self._tracker = PromptTracker(self._settings, group=group, block_size=block_size)

    @property
    def _wide(self) -> bool:
        return self._settings.capture == "pre_hc_head"

    @property
    def requires_kv_delivery(self) -> bool:
        """Nothing is handed off when a request ends: the rows went out with the end of its prompt."""
        return False

    @property
    def prefer_cross_layer_blocks(self) -> bool:
        """The cache of hidden states must stay a tensor of its own."""
        return False

    @classmethod
    def supports_sleep_mode(cls, kv_transfer_config: Any) -> bool:
        """Not while nobody has seen rows survive it (0.33 asks)."""
        return kv_transfer_config is None

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any) -> str | None:
        """The layout in which the cache keeps a token's layers together, as vLLM's own connector asks for it."""
        return "LBNHC" if vllm_config is not None else None

    # The workers' side.

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """Starts to serve readers, on the one rank that does."""
        if not get_pp_group().is_last_rank or get_tensor_model_parallel_rank() != 0:
            return
        source = WideSource(noted_target()) if self._wide else self._cache_source(kv_caches)
        self._worker = WorkerSide(self._vllm_config, self._settings, source)

    def _cache_source(self, kv_caches: dict[str, Any]) -> CacheSource:
        from vllm.model_executor.models.extract_hidden_states import CacheOnlyAttentionLayer  # noqa: PLC0415

        layers = get_layers_from_vllm_config(self._vllm_config, CacheOnlyAttentionLayer, list(kv_caches))
        if len(layers) != 1:
            raise ValueError(f"vLLM has {len(layers)} caches of hidden states instead of one")
        return CacheSource(kv_caches[next(iter(layers))], self._points, stored_positions(self._points))

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        """A step begins."""
        super().bind_connector_metadata(connector_metadata)
        if self._worker is not None:
            self._worker.begin(connector_metadata.step)

    def wait_for_save(self) -> None:
        """A step's rows are in the cache: vLLM calls this after target and drafter have run."""
        if self._worker is not None and self.has_connector_metadata():
            self._worker.end(self._get_connector_metadata().step)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:  # noqa: ARG002 - vLLM's signature
        """Nothing is loaded; vLLM's V2 runner says here in which order it took the step's requests."""
        if self._worker is not None and "request_ids" in kwargs:
            self._worker.note_step(kwargs["scheduler_output"], kwargs["request_ids"])

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing is loaded."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Rows are read from the cache once their prompt is complete."""

    def shutdown(self) -> None:
        """The engine ends."""
        if self._worker is not None:
            self._worker.stop()
            self._worker = None

    # The scheduler's side.

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:  # noqa: ARG002 - vLLM's signature
        """Nothing is loaded."""
        return 0, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Nothing is loaded."""

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        """What the workers have to do with a step that was just scheduled."""
        return StepMetadata(self._scheduler().step(scheduler_output))

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:  # noqa: ARG002 - vLLM's signature
        """Names the rows' lease in the answer, unless there is none. The request's blocks are needed no more."""
        lease_id = self._scheduler().finished(request.request_id)
        if lease_id is None:
            return False, None
        exporter = exporter_here(str(self._kv_transfer_config.engine_id))
        if exporter is not None and exporter.refused(lease_id):
            return False, None
        # "handle" is where speculators' clients look; the rest is for people and for readers elsewhere.
        about = {"lease_id": lease_id, "num_tokens": request.num_prompt_tokens}
        return False, {"handle": lease_id, "draftport": about}

    def request_finished_all_groups(
        self,
        request: Any,
        block_ids: tuple[list[int], ...],  # noqa: ARG002 - vLLM's signature
    ) -> tuple[bool, dict[str, Any] | None]:
        """As ``request_finished``."""
        return self.request_finished(request, [])

    def _scheduler(self) -> PromptTracker:
        if self._tracker is None:
            raise RuntimeError("this is the workers' side")
        return self._tracker


def _points_of(vllm_config: Any) -> tuple[int, ...]:
    """The capture points of the method, refused where vLLM would capture others."""
    speculative = vllm_config.speculative_config
    if speculative is None or speculative.method != METHOD:
        raise ValueError(f"DraftportConnector exports what the speculative method {METHOD} captures; set it.")
    return asked_points(
        getattr(speculative.draft_model_config.hf_config, "eagle_aux_hidden_state_layer_ids", None),
        vllm_config.model_config.get_total_num_hidden_layers(),
    )


def _hidden_states_group(kv_cache_config: Any) -> int:
    """Which group of cache blocks holds the hidden states."""
    groups = kv_cache_config.kv_cache_groups
    found = [
        index for index, group in enumerate(groups) if isinstance(group.kv_cache_spec, HiddenStateCacheSpec)
    ]
    if len(found) == 1:
        return found[0]
    if not found and len(groups) == 1:
        return 0  # where vLLM's own connector looks, too
    raise ValueError(
        "vLLM keeps the hidden states in no cache group of their own; targets with MLA are unsupported."
    )
