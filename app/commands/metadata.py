"""``draftport mask-token`` and ``draftport load-config``: the metadata answers without a server."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from ..drafting.engines import EngineError, EngineRef, parse_engine
from ..drafting.findings import Finding, has_errors
from ..drafting.load_config import LoadConfigError, parse_load_config
from ..drafting.load_config_answer import answer_load_config
from ..drafting.mask_token import MaskTokenError
from ..drafting.mask_token_answer import answer_mask_token
from ..drafting.methods import METHODS, detect_method
from ..sources.errors import SourceError
from ..sources.json_text import duplicate_key_findings, parse_config
from ..sources.operator_config import load_operator_config
from .output import print_fields, print_findings, print_json

SOUND, FOUND_ERRORS, COULD_NOT_ANSWER = 0, 1, 2
STANDARD_INPUT = "-"
MAX_INPUT_BYTES = 8 << 20


class Named(NamedTuple):
    """A config that the command line names."""

    config: dict[str, Any]
    token_text: Any
    findings: tuple[Finding, ...]


class LoadConfigQuestion(NamedTuple):
    """Options of ``draftport load-config``."""

    load_format: str
    pipeline_parallel_size: int
    draft_load_format: str | None
    method: str | None
    engine: str | None


def read_named(model: str, revision: str | None) -> Named:
    """The config of a hub id, a directory, a file ``....json`` or standard input.

    Raises:
        SourceError: it cannot be had.
    """
    if model == STANDARD_INPUT:
        return _parsed(sys.stdin.buffer)
    if model.endswith(".json") and Path(model).is_file():
        with Path(model).open("rb") as file:
            return _parsed(file)
    loaded = load_operator_config(model, revision)
    return Named(loaded.config, loaded.token_text, loaded.findings)


def _parsed(file: BinaryIO) -> Named:
    parsed = parse_config(file.read(MAX_INPUT_BYTES + 1), max_bytes=MAX_INPUT_BYTES)
    return Named(parsed.config, None, duplicate_key_findings(parsed.duplicate_keys))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keeps the domain's warnings out of the terminal: what they say is in the answer already."""
    logger = logging.getLogger(__name__.partition(".")[0])
    propagated = logger.propagate
    handler = logging.NullHandler()
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagated


def mask_token(
    model: str | None, *, revision: str | None, target: str | None, engine: str | None, as_json: bool
) -> int:
    """Prints the mask token id; the exit status."""
    if model is None:
        return _failed("name a model")
    try:
        named = read_named(model, revision)
        other = None if target is None else read_named(target, None).config
        with quiet():
            answer = answer_mask_token(
                named.config, target=other, engine=_engine(engine), token_text=named.token_text
            )
    except (SourceError, EngineError) as error:
        return _failed(error.detail)
    except MaskTokenError as error:
        return _no_mask_token(error, as_json=as_json)
    findings = (*answer.findings, *named.findings)
    document = msgspec.structs.asdict(answer) | {"findings": findings}
    if as_json:
        print_json(document)
    else:
        names = ("mask_token_id", "source", "translated_from", "method", "engine_method", "token")
        print_fields({name: document[name] for name in names if document[name] is not None})
        print_findings(findings)
    return FOUND_ERRORS if has_errors(findings) else SOUND


def load_config(
    model: str | None, question: LoadConfigQuestion, *, revision: str | None, as_json: bool
) -> int:
    """Prints the draft's load config; the exit status."""
    if question.method is not None and question.method not in METHODS:
        return _failed(f"There is no method {question.method}; give one of {', '.join(METHODS)}.")
    try:
        named = None if model is None else read_named(model, revision)
        config = None if named is None else named.config
        method = question.method or (None if config is None else detect_method(config).method)
        draft = question.draft_load_format
        with quiet():
            answer = answer_load_config(
                parse_load_config({"load_format": question.load_format}),
                question.pipeline_parallel_size,
                draft_load_config=None if draft is None else parse_load_config({"load_format": draft}),
                method=method,
                engine=_engine(question.engine),
                draft_config=config,
            )
    except (SourceError, EngineError, LoadConfigError) as error:
        return _failed(error.detail)
    if as_json:
        print_json(answer)
    else:
        print_fields(
            {
                "target load_format": answer.target.load_format,
                "draft load_format": answer.draft.load_format,
                "changed": ", ".join(answer.changed) or "nothing",
                "reason": answer.reason or "-",
                "engine": str(answer.engine),
                "engine draft load_format": answer.engine_draft_load_format or "unknown",
            }
        )
        print_findings(answer.findings)
    return FOUND_ERRORS if has_errors(answer.findings) else SOUND


def _no_mask_token(error: MaskTokenError, *, as_json: bool) -> int:
    if as_json:
        print_json(
            {
                "code": error.code,
                "detail": error.detail,
                "method": error.method,
                "candidates": error.candidates,
                "findings": error.findings,
            }
        )
    else:
        _failed(error.detail)
        print_findings(error.findings)
    return FOUND_ERRORS


def _engine(text: str | None) -> EngineRef | None:
    return None if text is None else parse_engine(text)


def _failed(detail: str) -> int:
    sys.stderr.write(f"draftport: {detail}\n")
    return COULD_NOT_ANSWER
