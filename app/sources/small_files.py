"""The only files that are ever opened or downloaded. Weights and code are not among them."""

from __future__ import annotations

from typing import Final

CONFIG: Final = "config.json"
GENERATION_CONFIG: Final = "generation_config.json"
TOKENIZER: Final = "tokenizer.json"
TOKENIZER_CONFIG: Final = "tokenizer_config.json"
ADDED_TOKENS: Final = "added_tokens.json"
VOCABULARY: Final = "vocab.json"
PARAMS: Final = "params.json"

TOKENIZER_FILES: Final = (TOKENIZER_CONFIG, ADDED_TOKENS, TOKENIZER, VOCABULARY)
SMALL_FILES: Final = frozenset({CONFIG, GENERATION_CONFIG, PARAMS, *TOKENIZER_FILES})
