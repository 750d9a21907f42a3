"""The one thread that runs the model: step after step, never waiting for a socket."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable

from ..export.call_error import CallError
from ..export.slab import Slab
from .jobs import Step
from .target import Target

_logger = logging.getLogger(__name__)
RETRY_AFTER_S = 1.0


class ModelThread:
    """Runs steps in the order given and reports each when the device has finished.

    Args:
        target: the model.
        slab: where the rows go.
        done: called on this thread after each step, with ``seconds`` and ``error`` filled in.
    """

    def __init__(self, target: Target, slab: Slab, done: Callable[[Step], None]) -> None:
        self._target = target
        self._slab = slab
        self._done = done
        self._steps: queue.SimpleQueue[Step | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)
        self._thread.start()

    def submit(self, step: Step) -> None:
        """Queues a step behind the one that runs."""
        self._steps.put(step)

    def stop(self) -> None:
        """Ends the thread after the step that runs."""
        self._steps.put(None)

    def _run(self) -> None:
        while (step := self._steps.get()) is not None:
            began = time.perf_counter()
            try:
                self._run_step(step)
            except Exception as error:  # noqa: BLE001 - a step's failure is its callers' affair, the worker lives
                step.error = _call_error(error)
            step.seconds = time.perf_counter() - began
            self._done(step)

    def _run_step(self, step: Step) -> None:
        # What was given up in the meantime costs nothing any more.
        parts = [part for part in step.parts if part.job.error is None]
        rows = [
            self._slab.rows(one.placement.slot, one.placement.row_start, one.placement.num_tokens)
            for one in parts
        ]
        if parts:
            self._target.run_step([part.token_ids for part in parts], rows)


def _call_error(error: Exception) -> CallError:
    import torch  # noqa: PLC0415 - loaded with the target

    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        _logger.error("out of memory in a step: %s", error)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        detail = "The device ran out of memory in this step; send shorter or fewer prompts."
        return CallError("out_of_memory", detail, retry_after_s=RETRY_AFTER_S)
    _logger.error("a step failed", exc_info=error)
    return CallError("worker_error", "The forward pass failed; the worker's log has the cause.")
