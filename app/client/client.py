"""The client for programs that wait."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx
from httpx_retries import RetryTransport

from ..transport.messages import TargetDescription
from ..transport.region import RegionDescriptor
from . import calls
from .answers import DraftingPlan, HiddenStates, LoadConfigs, MaskToken, Readiness, RenewedLease, Version
from .calls import Call, Engine, ModelReference
from .errors import UnreachableError
from .exchange import BearerToken, answer_of, request_of, retry_policy, timeouts

_Answer = TypeVar("_Answer")


class DraftportClient:
    """Talks to one Draftport service; safe to share between threads.

    Args:
        base_url: where the service listens.
        token: bearer token, where the service wants one.
        token_file: a file with the token, read for each request.
        timeout_s: seconds to wait for an answer; a prompt may wait in the service's queue for up to a minute.
        retries: how often a call is repeated after 429, 502, 503, 504 or a broken connection.
        verify: ``ssl.SSLContext`` for a private certificate authority, or ``False`` for none.
        transport: another ``httpx.BaseTransport`` beneath the retries, e.g. for a proxy.

    Every method raises ``ProblemError`` where the service refuses, ``UnreachableError`` where nobody answers, and
    ``UnexpectedAnswerError`` where something else does.
    """

    def __init__(
        self,
        base_url: str = "http://127.0.0.1:8000",
        *,
        token: str | None = None,
        token_file: str | os.PathLike[str] | None = None,
        timeout_s: float = 90.0,
        retries: int = 4,
        verify: ssl.SSLContext | bool = True,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._http = httpx.Client(
            base_url=base_url,
            auth=BearerToken(token, token_file),
            timeout=timeouts(timeout_s),
            transport=RetryTransport(
                transport or httpx.HTTPTransport(verify=verify), retry=retry_policy(retries)
            ),
        )

    def mask_token(
        self,
        model: str | None = None,
        *,
        revision: str | None = None,
        config: Mapping[str, Any] | None = None,
        target: ModelReference | None = None,
        engine: Engine | None = None,
    ) -> MaskToken:
        """Which mask token id will this drafter use? ``model`` or ``config`` names the drafter.

        Raises:
            ProblemError: ``mask_token_missing`` and ``mask_token_invalid`` (with ``candidates`` in the document), or
                the config cannot be had: ``model_not_found``, ``config_invalid``, ``hub_unreachable``, ...
        """
        return self._send(calls.mask_token(model, revision, config, target, engine))

    def load_config(
        self,
        load_config: Mapping[str, Any],
        *,
        pipeline_parallel_size: int,
        draft_load_config: Mapping[str, Any] | None = None,
        model: str | None = None,
        revision: str | None = None,
        config: Mapping[str, Any] | None = None,
        method: str | None = None,
        engine: Engine | None = None,
    ) -> LoadConfigs:
        """Which load config will the draft really get? ``load_config`` has vLLM's fields.

        ``model`` or ``config`` names the draft model, read only to infer ``method``.
        """
        optional = {
            "draft_load_config": draft_load_config,
            "model": model,
            "revision": revision,
            "config": config,
            "method": method,
            "engine": engine,
        }
        return self._send(calls.load_config(load_config, pipeline_parallel_size, optional))

    def drafting_plan(
        self,
        target: ModelReference | None = None,
        draft: ModelReference | None = None,
        *,
        method: str | None = None,
        num_speculative_tokens: int | None = None,
        max_num_batched_tokens: int | None = None,
        max_num_seqs: int | None = None,
        load_config: Mapping[str, Any] | None = None,
        draft_load_config: Mapping[str, Any] | None = None,
        parallel: Mapping[str, int] | None = None,
        dtype: str | None = None,
        engine: Engine | None = None,
        vllm_args: str | Sequence[str] | None = None,
    ) -> DraftingPlan:
        """Will this pair work? Problems of the pair are findings of the plan, not exceptions: see ``plan.ok``."""
        optional = {
            "method": method,
            "num_speculative_tokens": num_speculative_tokens,
            "max_num_batched_tokens": max_num_batched_tokens,
            "max_num_seqs": max_num_seqs,
            "load_config": load_config,
            "draft_load_config": draft_load_config,
            "parallel": parallel,
            "dtype": dtype,
            "engine": engine,
            "vllm_args": vllm_args,
        }
        return self._send(calls.drafting_plan(target, draft, optional))

    def target(self) -> TargetDescription:
        """The model that the worker holds, and what a row of its hidden states is."""
        return self._send(calls.TARGET)

    def hidden_states(
        self,
        prompt_token_ids: Sequence[Sequence[int]] | None = None,
        *,
        prompts: Sequence[str] | None = None,
        lease_ttl_s: float = 30.0,
    ) -> HiddenStates:
        """Runs prompts (token ids, or text where the target has a tokenizer) and leases their rows, all or none.

        A process on the service's machine opens a lease with ``app.reader``: ``region.open(lease)``.

        Raises:
            ProblemError: ``prompt_too_long``, ``token_out_of_range``, ``empty_prompt``; when retries did not help
                ``slab_full``, ``overloaded``, ``worker_unavailable``; ``worker_disabled``.
        """
        return self._send(calls.hidden_states(prompt_token_ids, prompts, lease_ttl_s))

    def download_hidden_states(
        self,
        prompt_token_ids: Sequence[Sequence[int]] | None = None,
        *,
        prompts: Sequence[str] | None = None,
    ) -> bytes:
        """Runs prompts and returns their rows as a safetensors file; no lease is left behind.

        For clients on other machines. ``safetensors.torch.load(data)`` gives ``hidden_states.0`` ``[num_tokens,
        width]`` and ``token_ids.0`` ``[num_tokens]`` (int64), one pair per prompt.
        """
        return self._send(calls.download(prompt_token_ids, prompts))

    def lease_tensor(self, lease_id: str) -> bytes:
        """One lease's rows as a safetensors file with ``hidden_states`` and ``token_ids``."""
        return self._send(calls.lease_tensor(lease_id))

    def renew_lease(self, lease_id: str, lease_ttl_s: float = 30.0) -> RenewedLease:
        """Lets the lease live ``lease_ttl_s`` seconds from now."""
        return self._send(calls.renew_lease(lease_id, lease_ttl_s))

    def release_lease(self, lease_id: str) -> None:
        """Ends the lease; doing so twice is no error."""
        self._send(calls.release_lease(lease_id))

    def region(self) -> RegionDescriptor:
        """The region descriptor; ``region_not_exposed`` unless the service is told to give it away."""
        return self._send(calls.REGION)

    def ready(self) -> Readiness:
        """What the service says of itself and of its worker, asked once."""
        return self._send(calls.READINESS)

    def version(self) -> Version:
        """Versions."""
        return self._send(calls.VERSION)

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _send(self, call: Call[_Answer]) -> _Answer:
        try:
            response = self._http.send(request_of(self._http, call))
        except httpx.TransportError as error:
            raise UnreachableError(f"{self._http.base_url} does not answer: {error!r}") from error
        return answer_of(call, response)
