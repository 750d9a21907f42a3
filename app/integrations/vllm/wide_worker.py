"""The worker class that lets the connector see the target, for ``--worker-cls``; see ``wide_source``. Unproven."""

from __future__ import annotations

from typing import Any

from vllm.v1.worker.gpu_worker import Worker

from .wide_source import note_target


class WideResidualWorker(Worker):  # type: ignore[misc]  # vLLM is no dependency
    """vLLM's worker, which gives the connector no way to its model (0.33, ``KVConnectorBase_V1``)."""

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Loads the target, and notes it."""
        super().load_model(*args, **kwargs)
        note_target(self.get_model())
