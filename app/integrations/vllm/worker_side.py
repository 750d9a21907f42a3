"""The connector in vLLM's worker process: writes rows where the hidden states' cache is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import structs

from ...export.slab import Slab
from ...transport.messages import DeviceInfo, HiddenStatesLayout, TargetDescription
from .engine_api import EngineApi
from .exporter import VllmExporter
from .row_source import RowSource
from .server_thread import ServerThread
from .settings import ConnectorSettings
from .step import Step

_here: dict[
    str, VllmExporter
] = {}  # by engine id: exporters of this process, for a scheduler in the same one


def exporter_here(engine_id: str) -> VllmExporter | None:
    """The exporter of an engine, where its worker runs in this process (one GPU, or a CPU)."""
    return _here.get(engine_id)


class WorkerSide:
    """Serves readers and fills the slab; exists on tensor-parallel rank 0 of the last pipeline stage only.

    Args:
        vllm_config: the engine's.
        settings: the connector's.
        source: where the rows come from.
    """

    def __init__(self, vllm_config: Any, settings: ConnectorSettings, source: RowSource) -> None:
        self._engine_id = str(vllm_config.kv_transfer_config.engine_id)
        self._source = source
        self._device = source.device
        self._on_device = source.device.type != "cpu"
        rows = settings.rows_per_slot or vllm_config.scheduler_config.max_num_batched_tokens
        device = f"cuda:{source.device.index or 0}" if self._on_device else "cpu"
        layout = structs.replace(source.layout, rows=rows, buffer_bytes=rows * source.layout.bytes_per_token)

        def make_slab(epoch: str) -> Slab:
            return Slab(
                slots=settings.slots,
                rows_per_slot=rows,
                width=layout.width,
                dtype=layout.dtype,
                device=device,
                epoch=epoch,
            )

        parallel = vllm_config.parallel_config
        self._server = ServerThread(
            settings.socket_of(parallel.data_parallel_rank, parallel.data_parallel_size),
            settings.socket_group,
            make_slab=make_slab,
            description=_described(vllm_config, layout, device),
            longest_prompt=min(rows, vllm_config.model_config.max_model_len - 1),
            make_api=_api_of(vllm_config, settings),
        )
        _here[self._engine_id] = self._server.exporter

    def begin(self, step: Step) -> None:
        """Before a step is run."""
        if step.announced or step.withdrawn:
            self._server.exporter.begin(step)

    def end(self, step: Step) -> None:
        """After a step was run: every row of its prompts is in the cache, or queued to be."""
        if step.prompts:
            self._server.exporter.export(step.prompts, self._source.write, self._when_written)

    def stop(self) -> None:
        """Hangs up on all readers."""
        _here.pop(self._engine_id, None)
        self._server.stop()

    def note_step(self, scheduled: Any, request_ids: Sequence[str]) -> None:
        """Which requests the step that was just run has, in the order of their tokens."""
        self._source.note_step(scheduled, request_ids)

    def _when_written(self, act: Callable[[], None]) -> None:
        if not self._on_device:
            act()
            return
        import torch  # noqa: PLC0415 - the engine has loaded it

        event = torch.cuda.Event(blocking=True)
        event.record(torch.cuda.current_stream(self._device))

        def wait() -> None:
            event.synchronize()  # without the GIL, and off the engine's thread
            act()

        threading.Thread(target=wait, name="draftport-written", daemon=True).start()


def _api_of(vllm_config: Any, settings: ConnectorSettings) -> Callable[[], EngineApi] | None:
    url = settings.api_url
    if url is None:
        return None
    names = vllm_config.model_config.served_model_name
    model = names if isinstance(names, str) else (names or [vllm_config.model_config.model])[0]
    key = settings.api_key()
    return lambda: EngineApi(url, model, key)


def _described(vllm_config: Any, layout: HiddenStatesLayout, device: str) -> TargetDescription:
    model = vllm_config.model_config
    return TargetDescription(
        model=str(model.served_model_name or model.model),
        revision=model.revision,
        architecture=model.architecture,
        dtype=str(model.dtype).removeprefix("torch."),
        hidden_size=model.get_hidden_size(),
        num_hidden_layers=model.get_total_num_hidden_layers(),
        vocab_size=model.get_vocab_size(),
        max_num_batched_tokens=layout.rows,
        device=_device_info(device),
        hidden_states=layout,
        has_tokenizer=False,
    )


def _device_info(device: str) -> DeviceInfo:
    if device == "cpu":
        return DeviceInfo(type="cpu", uuid=None, name="cpu")
    import torch  # noqa: PLC0415 - the engine has loaded it

    from ...transport.cuda_ipc import gpu_uuid  # noqa: PLC0415 - only where there is a GPU

    ordinal = int(device.partition(":")[2])
    return DeviceInfo(type="cuda", uuid=gpu_uuid(ordinal), name=torch.cuda.get_device_name(ordinal))
