"""What each engine version adds to a step for drafting, as data; a gap between known versions stays a gap."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from msgspec import Struct

from .engines import EngineRef, Fact, Row, look_up
from .findings import Evidence

# Drafters that fill a whole block in one forward pass.
BLOCK_METHODS: Final = frozenset({"dflash", "dflash2", "dspark", "domino", "dflare"})
# Engines whose decode step verifies K drafts and one more token per request in one batch of rows.
ROWS_ARE_K_PLUS_ONE: Final = frozenset({"vllm"})


class Slots(Struct, frozen=True):
    """Tokens per request that the scheduler keeps free: ``k_factor`` x num_speculative_tokens + ``constant``."""

    k_factor: int
    constant: int
    evidence: Evidence = "read in code"

    def per_request(self, num_speculative_tokens: int) -> int:
        """The number for one K, never negative."""
        return max(0, self.k_factor * num_speculative_tokens + self.constant)


_SOURCE_033: Final = "vLLM 0.33: vllm/config/speculative.py"
_SOURCE_032: Final = "vLLM 0.32: vllm/config/speculative.py"
_NONE: Final = Slots(0, 0)
_BOTH: Final = "==0.32.0 || ==0.33.0"

# Two reports of servers that did not start name K - 1 slots; their versions are those released at the time.
_REPORTED = Row(
    "vllm", ">=0.20,<=0.26.0", Slots(1, -1, "reported"), "https://github.com/vllm-project/vllm/issues/50708"
)
_DFLASH: Final = (
    Row("vllm", "==0.33.0", _NONE, _SOURCE_033),
    Row("vllm", "==0.32.0", Slots(1, 0), _SOURCE_032),
    _REPORTED,
)
_DSPARK: Final = (
    Row("vllm", "==0.33.0", _NONE, _SOURCE_033),
    Row("vllm", "==0.32.0", Slots(1, -1), _SOURCE_032),
)
_WITHOUT: Final = (Row("vllm", _BOTH, _NONE, _SOURCE_033),)

EXTRA_SLOTS: Final[Mapping[str, tuple[Row, ...]]] = {
    "dflash": _DFLASH,
    "dflash2": _DFLASH,
    "domino": _DFLASH,
    "dflare": _DFLASH,
    "dspark": _DSPARK,
    "peagle": (Row("vllm", _BOTH, Slots(1, -1), _SOURCE_033),),
    "pard": (Row("vllm", _BOTH, Slots(1, 0), _SOURCE_033),),
    "draft_model": (Row("vllm", _BOTH, Slots(0, 1), _SOURCE_033),),
    "eagle": _WITHOUT,
    "eagle3": _WITHOUT,
    "mtp": _WITHOUT,
    "medusa": _WITHOUT,
    "mlp_speculator": _WITHOUT,
    "ngram": _WITHOUT,
    "suffix": _WITHOUT,
    "extract_hidden_states": _WITHOUT,
}

# Methods that an engine does not run over several pipeline stages at all.
PP_REFUSED: Final[Mapping[str, tuple[Row, ...]]] = {
    "sglang": (
        Row(
            "sglang",
            "==0.5.23",
            frozenset({"dflash", "dflash2"}),
            "SGLang 0.5.23: server_args.py",
        ),
    ),
}


@lru_cache(maxsize=1024)
def extra_slots(method: str, engine: EngineRef) -> Fact[Slots] | None:
    """What is known of a method's extra slots on an engine version."""
    return look_up(EXTRA_SLOTS.get(method, ()), engine)


@lru_cache(maxsize=256)
def refuses_pipeline(method: str, engine: EngineRef) -> Fact[frozenset[str]] | None:
    """The row that says that this engine version refuses the method with pipeline parallelism, if there is one."""
    known = look_up(PP_REFUSED.get(engine.name, ()), engine)
    return known if known is not None and method in known.value else None
