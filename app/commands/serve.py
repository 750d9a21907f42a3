"""``draftport serve``."""

from __future__ import annotations

from ..api.auth import TokenFileError
from ..serve import StartError, fail, serve
from ..settings import Settings

COULD_NOT_START = 2


def run(settings: Settings) -> int:
    """Serves; the exit status."""
    try:
        return serve(settings)
    except (StartError, TokenFileError) as error:
        fail(str(error))
        return COULD_NOT_START
