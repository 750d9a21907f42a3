"""The target's tokenizer, from the checkpoint's own files."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

_log = logging.getLogger(__name__)


def load_tokenizer(directory: Path) -> Any | None:
    """A transformers tokenizer, or ``None`` where the checkpoint brings none that can be used here.

    A repository's own tokenizer code is never run; its ``tokenizer.json`` then still works.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast  # noqa: PLC0415 - seconds of start-up

    loaders: tuple[Callable[[], Any], ...] = (
        lambda: AutoTokenizer.from_pretrained(directory, trust_remote_code=False, local_files_only=True),
        lambda: PreTrainedTokenizerFast.from_pretrained(directory, local_files_only=True),
    )
    for load in loaders:
        try:
            return load()
        except Exception as error:  # noqa: BLE001 - whatever a checkpoint's files provoke, the target works without
            _log.info("A way to load the target's tokenizer failed", exc_info=error)
    _log.warning("The target's tokenizer can't be used here, so only token ids are accepted")
    return None


def encode_texts(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    """Token ids, with the special tokens that the tokenizer adds by default, never truncated."""
    if not texts:
        return []
    ids: list[list[int]] = tokenizer(texts, verbose=False)["input_ids"]
    return ids
