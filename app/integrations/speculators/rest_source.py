"""Samples from another machine, downloaded through Draftport's REST."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx

if TYPE_CHECKING:
    import torch

TIMEOUT_S: Final = 120.0  # as speculators' own requests
_HEADER_LENGTH_BYTES: Final = 8


class DownloadError(Exception):
    """Draftport has not given the rows out; ``code`` is the contract's."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code


class RestSource:
    """Downloads leases as safetensors.

    Args:
        url: Draftport's, e.g. ``http://node:8000``.
        token_file: file with its bearer token, if it wants one; read anew for each process.
    """

    def __init__(self, url: str, token_file: str | None) -> None:
        self._url = url.rstrip("/")
        self._token_file = token_file
        self._client: httpx.Client | None = None

    def __getstate__(self) -> dict[str, Any]:
        """For data loaders that spawn their workers: connections stay where they are."""
        return {"_url": self._url, "_token_file": self._token_file, "_client": None}

    def connect(self) -> httpx.Client:
        """The connections of this process."""
        if self._client is None:
            token = Path(self._token_file).read_text(encoding="utf-8").strip() if self._token_file else None
            headers = {"authorization": f"Bearer {token}"} if token else {}
            self._client = httpx.Client(headers=headers, timeout=TIMEOUT_S)
        return self._client

    def sample(self, lease_id: str) -> tuple[torch.Tensor, list[int], int]:
        """Rows ``[num_tokens, width]`` on the CPU, token ids, number of layers.

        Raises:
            DownloadError: Draftport refused.
            httpx.HTTPError: it cannot be reached.
        """
        from safetensors.torch import load  # noqa: PLC0415 - brings torch

        answer = self.connect().get(f"{self._url}/v1/hidden-states/leases/{lease_id}/tensor")
        if answer.status_code != httpx.codes.OK:
            raise _refusal(answer)
        tensors = load(answer.content)
        return tensors["hidden_states"], tensors["token_ids"].tolist(), _layers(answer.content)

    def delete(self, lease_id: str) -> None:
        """Gives the rows back."""
        self.connect().delete(f"{self._url}/v1/hidden-states/leases/{lease_id}")

    def close(self) -> None:
        """Closes the connections of this process."""
        if self._client is not None:
            self._client.close()
            self._client = None


def _layers(file: bytes) -> int:
    """How many layers lie side by side in a row, from the file's metadata."""
    end = _HEADER_LENGTH_BYTES + int.from_bytes(file[:_HEADER_LENGTH_BYTES], "little")
    metadata = json.loads(file[_HEADER_LENGTH_BYTES:end])["__metadata__"]
    points = json.loads(metadata["hidden_states"])["capture_points"]
    return len(points) if points else 1


def _refusal(answer: httpx.Response) -> DownloadError:
    try:
        problem = answer.json()
        return DownloadError(problem["code"], problem["detail"])
    except (ValueError, KeyError, TypeError):
        return DownloadError("unknown", f"HTTP {answer.status_code} from something that is not Draftport")
