"""``draftport healthcheck``: for containers whose image has no curl."""

from __future__ import annotations

import sys

import httpx

from ..settings import Settings

TIMEOUT_S = 3.0


def run(url: str | None) -> int:
    """0 when the probe answers 200, else 1 with the reason on standard error."""
    try:
        answer = httpx.get(url or default_url(), timeout=TIMEOUT_S, verify=False, trust_env=False)  # noqa: S501 - own loopback
    except httpx.HTTPError as error:
        sys.stderr.write(f"draftport: no answer ({type(error).__name__})\n")
        return 1
    sys.stdout.write(f"{answer.status_code} {answer.text}\n")
    return 0 if answer.status_code == httpx.codes.OK else 1


def default_url() -> str:
    """``/livez`` where this machine's settings say that the service listens."""
    settings = Settings()
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(settings.host, settings.host)  # noqa: S104 - compared, not bound
    scheme = "http" if settings.tls_cert_file is None else "https"
    return f"{scheme}://{host}:{settings.port}/livez"
