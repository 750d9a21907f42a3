"""vLLM's own API, asked to run the prompts of clients who came through our socket."""

from __future__ import annotations

from typing import Any, Final

import httpx

from ...export.call_error import CallError

MAX_CONNECTIONS: Final = 128
CONNECT_TIMEOUT_S: Final = 5.0
RETRY_AFTER_S: Final = 1.0
STARTING_RETRY_S: Final = 2.0


class EngineApi:
    """Asks ``/v1/completions`` for one token after a prompt, which is the least that vLLM lets one ask for.

    Args:
        url: where the API listens, with or without ``/v1``.
        model: a name under which it serves the target.
        api_key: sent as a bearer token, if any.
    """

    def __init__(self, url: str, model: str, api_key: str | None) -> None:
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._path = url.rstrip("/").removesuffix("/v1") + "/v1/completions"
        self._model = model
        self._client = httpx.AsyncClient(
            headers=headers,
            timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S),  # the caller's deadline is kept elsewhere
            limits=httpx.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_CONNECTIONS),
            trust_env=False,
        )

    async def prefill(self, token_ids: list[int], ticket: str) -> None:
        """Runs a prompt, whose rows will be written by the time this returns; cancel it to have vLLM give it up.

        Raises:
            CallError: vLLM did not; ``worker_unavailable`` while its API does not listen yet.
        """
        body: dict[str, Any] = {
            "model": self._model,
            "prompt": token_ids,
            "max_tokens": 1,
            "temperature": 0.0,
            "kv_transfer_params": {"draftport": {"ticket": ticket}},
        }
        try:
            answer = await self._client.post(self._path, json=body)
        except httpx.ConnectError:
            detail = "The engine's API does not listen (yet); try again, or set api_url to where it does."
            raise CallError("worker_unavailable", detail, retry_after_s=STARTING_RETRY_S) from None
        except httpx.HTTPError:
            detail = "The engine's API hung up; try again."
            raise CallError("worker_unavailable", detail, retry_after_s=RETRY_AFTER_S) from None
        if answer.status_code != httpx.codes.OK:
            raise _refusal(answer.status_code)

    async def close(self) -> None:
        """Closes its connections."""
        await self._client.aclose()


def _refusal(status: int) -> CallError:
    if status in (httpx.codes.TOO_MANY_REQUESTS, httpx.codes.SERVICE_UNAVAILABLE):
        return CallError(
            "overloaded", "The engine has too much to do; try again.", retry_after_s=RETRY_AFTER_S
        )
    if status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        return CallError("worker_error", "The engine's API wants another key; set api_key_file.")
    return CallError("worker_error", f"The engine refused the prompt (HTTP {status}); its log has the cause.")
