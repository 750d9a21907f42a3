"""What each engine version adds to a step for drafting, as data; a gap between known versions stays a gap.

K is ``num_speculative_tokens``. A row holds for versions from ``first`` up to but not including ``before``.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from .findings import Evidence

Version: TypeAlias = tuple[int, ...]

# Drafters that fill a whole block in one forward pass, outside the scheduler's count of tokens.
BLOCK_METHODS = frozenset({"dflash", "dflash2", "dspark", "domino", "dflare"})
_DFLASH_LIKE = BLOCK_METHODS - {"dspark"}
_WITHOUT_EXTRA_SLOTS = frozenset(
    {
        "eagle",
        "eagle3",
        "mtp",
        "medusa",
        "mlp_speculator",
        "ngram",
        "suffix",
        "extract_hidden_states",
        "pard2",
    }
)


class ExtraSlots(Struct, frozen=True):
    """Slots that the scheduler keeps free per request: ``k_factor`` x K + ``constant``.

    Attributes:
        engine: ``vllm`` or ``vllm-ascend``.
        methods: drafting methods that the row is about.
        first: first version, inclusive.
        before: first version that it no longer holds for, ``None`` for the newest known.
        k_factor: 0 or 1.
        constant: added to it.
        evidence: how it is known.
        source: where it can be checked.
    """

    engine: str
    methods: frozenset[str]
    first: Version
    before: Version | None
    k_factor: int
    constant: int
    evidence: Evidence
    source: str

    def slots(self, num_speculative_tokens: int) -> int:
        """Slots per request at this K, never negative."""
        return max(0, self.k_factor * num_speculative_tokens + self.constant)


_SCHEDULER_033 = "vLLM 0.33: vllm/config/speculative.py"
_SCHEDULER_032 = "vLLM 0.32: vllm/config/speculative.py"

EXTRA_SLOTS = (
    ExtraSlots("vllm", BLOCK_METHODS, (0, 33), None, 0, 0, "read in code", _SCHEDULER_033),
    ExtraSlots("vllm", _DFLASH_LIKE, (0, 32), (0, 33), 1, 0, "read in code", _SCHEDULER_032),
    ExtraSlots("vllm", frozenset({"dspark"}), (0, 32), (0, 33), 1, -1, "read in code", _SCHEDULER_032),
    ExtraSlots(
        "vllm",
        _DFLASH_LIKE,
        (0, 20),
        (0, 27),
        1,
        -1,
        "reported",
        "https://github.com/vllm-project/vllm/issues/50708",
    ),
    ExtraSlots("vllm", frozenset({"peagle"}), (0, 32), None, 1, -1, "read in code", _SCHEDULER_033),
    ExtraSlots("vllm", frozenset({"pard"}), (0, 32), None, 1, 0, "read in code", _SCHEDULER_033),
    ExtraSlots("vllm", frozenset({"draft_model"}), (0, 32), None, 0, 1, "read in code", _SCHEDULER_033),
    ExtraSlots("vllm", _WITHOUT_EXTRA_SLOTS, (0, 32), None, 0, 0, "read in code", _SCHEDULER_033),
    ExtraSlots(
        "vllm-ascend",
        BLOCK_METHODS,
        (0,),
        None,
        1,
        -1,
        "reported",
        "https://github.com/vllm-project/vllm-ascend/issues/13717",
    ),
)

# The versions whose code was read; a newer one is unknown until somebody reads it.
NEWEST_READ = {"vllm": (0, 33)}
# Engines whose decode step verifies K drafts and one more token per request in one batch of rows.
ROWS_ARE_K_PLUS_ONE = frozenset({"vllm", "vllm-ascend"})


def extra_slots_row(method: str, engine: str, version: Version | None) -> ExtraSlots | None:
    """The row for a method on an engine version (``None``: the newest read), ``None`` where nothing is known."""
    newest = NEWEST_READ.get(engine)
    wanted = version if version is not None else newest
    if newest is not None and wanted is not None and wanted[:2] > newest:
        return None
    for row in EXTRA_SLOTS:
        if row.engine != engine or method not in row.methods:
            continue
        if wanted is None or (row.first <= wanted and (row.before is None or wanted < row.before)):
            return row
    return None
