"""A token's text by its id, from the tokenizer files alone: no tokenizers library, no code from a repository."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from .small_files import ADDED_TOKENS, TOKENIZER, TOKENIZER_CONFIG, VOCABULARY

MAX_REMEMBERED_IDS: Final = 1024
_T = TypeVar("_T")


class _DecoderEntry(Struct):
    content: str = ""


class _TokenizerConfig(Struct):
    added_tokens_decoder: dict[str, _DecoderEntry] = msgspec.field(default_factory=dict)


class _AddedToken(Struct):
    id: int
    content: str


class _Model(Struct):
    vocab: msgspec.Raw = msgspec.Raw(b"{}")


class _Tokenizer(Struct):
    added_tokens: list[_AddedToken] = msgspec.field(default_factory=list)
    model: _Model | None = None


class TokenLookup:
    """Looks ids up in the tokenizer files, the small ones first, and remembers the answers.

    The text is the vocabulary's own spelling: byte-level BPE pieces keep their marks (``Ġ`` for a space).

    Args:
        read: the content of a file by name, ``None`` where there is none. May block.
    """

    def __init__(self, read: Callable[[str], bytes | None]) -> None:
        self._read = read
        self._known: dict[int, str | None] = {}
        self._lock = threading.Lock()

    def known(self, token_id: int) -> bool:
        """Whether the answer is remembered, so that asking costs nothing."""
        return token_id in self._known

    def __call__(self, token_id: int) -> str | None:
        """The token's text, or ``None``."""
        if token_id in self._known:
            return self._known[token_id]
        with self._lock:
            text = self._look_up(token_id)
            if len(self._known) >= MAX_REMEMBERED_IDS:
                self._known.clear()
            self._known[token_id] = text
        return text

    def _look_up(self, token_id: int) -> str | None:
        if token_id < 0:
            return None
        for name, find in _FINDERS:
            content = self._read(name)
            text = find(content, token_id) if content is not None else None
            if text is not None:
                return text
        return None


def _decoded(content: bytes | msgspec.Raw, kind: type[_T]) -> _T | None:
    """A broken tokenizer file says nothing about the drafter, so it counts as absent."""
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None


def _in_tokenizer_config(content: bytes, token_id: int) -> str | None:
    config = _decoded(content, _TokenizerConfig)
    entry = config.added_tokens_decoder.get(str(token_id)) if config else None
    return (entry.content or None) if entry else None


def _in_vocabulary(content: bytes | msgspec.Raw, token_id: int) -> str | None:
    vocabulary = _decoded(content, dict[str, int])
    if vocabulary is None:
        return None
    return next((text for text, number in vocabulary.items() if number == token_id), None)


def _in_piece_list(content: bytes | msgspec.Raw, token_id: int) -> str | None:
    """Unigram models list ``[text, score]`` pairs; the place in the list is the id."""
    pieces = _decoded(content, list[tuple[str, float]])
    return pieces[token_id][0] if pieces is not None and token_id < len(pieces) else None


def _in_tokenizer(content: bytes, token_id: int) -> str | None:
    tokenizer = _decoded(content, _Tokenizer)
    if tokenizer is None:
        return None
    for token in tokenizer.added_tokens:
        if token.id == token_id:
            return token.content
    if tokenizer.model is None:
        return None
    vocabulary = tokenizer.model.vocab
    is_list = bytes(memoryview(vocabulary)[:1]) == b"["
    return _in_piece_list(vocabulary, token_id) if is_list else _in_vocabulary(vocabulary, token_id)


_FINDERS: Final[tuple[tuple[str, Callable[[bytes, int], str | None]], ...]] = (
    (TOKENIZER_CONFIG, _in_tokenizer_config),
    (ADDED_TOKENS, _in_vocabulary),
    (TOKENIZER, _in_tokenizer),
    (VOCABULARY, _in_vocabulary),
)
