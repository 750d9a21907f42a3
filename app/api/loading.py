"""From a model reference in a request to a config, with what the answer says about where it came from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ..drafting.engines import EngineError, EngineRef, parse_engine
from ..drafting.findings import Finding
from ..sources.errors import SourceError
from ..sources.json_text import config_sha256_of, duplicate_key_findings
from ..sources.loaded import LoadedModel
from .body import JsonBody
from .context import Context
from .problem import FieldProblem, ProblemError, invalid
from .schemas import EngineSpec, ModelRef


class Given(NamedTuple):
    """A config to answer about.

    Attributes:
        config: parsed.
        document: the ``model`` member of answers.
        key: everything that the config and its findings depend on.
        findings: about how it was had.
        duplicate_keys: keys that an inline config repeats; of a file, ``findings`` tells already.
        loaded: the model's files, ``None`` for an inline config.
    """

    config: dict[str, Any]
    document: dict[str, Any]
    key: tuple[Any, ...]
    findings: tuple[Finding, ...] = ()
    loaded: LoadedModel | None = None


async def load_model(context: Context, model: str, revision: str | None, field: str = "model") -> Given:
    """Loads a model by name.

    Raises:
        ProblemError: whatever the sources refuse, naming the field.
    """
    source = "local" if model.startswith("/") else "hub"
    known = context.sources.cached(model, revision)
    if known is not None:
        context.metrics.config_loads.labels(source, "memory").inc()
        return _of_loaded(known)
    try:
        loaded = await context.sources.load(model, revision)
    except SourceError as error:
        context.metrics.config_loads.labels(source, error.code).inc()
        errors = [FieldProblem(field, error.code, error.detail)]
        raise ProblemError(
            error.code, error.detail, errors=errors, retry_after_s=error.retry_after_s
        ) from None
    from_cache = any(finding.code == "config_from_cache" for finding in loaded.findings)
    context.metrics.config_loads.labels(source, "cache" if from_cache else "ok").inc()
    return _of_loaded(loaded)


async def load_ref(context: Context, ref: ModelRef, body: JsonBody, field: str = "") -> Given:
    """Loads what a request's ``model`` or inline ``config`` says; ``field`` is where the reference stands."""
    prefix = f"{field}." if field else ""
    if ref.model is not None:
        return await load_model(context, ref.model, ref.revision, f"{prefix}model")
    config = ref.config if ref.config is not None else {}
    return inline(config, body.duplicates_below(f"{prefix}config"))


def inline(config: dict[str, Any], duplicate_keys: tuple[str, ...] = ()) -> Given:
    """A config that came in the request."""
    digest = config_sha256_of(config)
    document = {"id": None, "revision": None, "config_sha256": digest}
    return Given(config, document, (digest, duplicate_keys), duplicate_key_findings(duplicate_keys))


def _of_loaded(loaded: LoadedModel) -> Given:
    document = {"id": loaded.id, "revision": loaded.revision, "config_sha256": loaded.config_sha256}
    key = (loaded.id, loaded.revision, loaded.config_sha256, loaded.findings)
    return Given(loaded.config, document, key, loaded.findings, loaded)


def engine_of(given: EngineSpec | str | None) -> EngineRef | None:
    """The engine a request names, ``None`` when it names none.

    Raises:
        ProblemError: ``invalid_request`` naming the field.
    """
    if given is None:
        return None
    spec: Any = given if isinstance(given, str) else given.model_dump()
    try:
        return parse_engine(spec)
    except EngineError as error:
        raise invalid(error.field, error.detail, "unknown_engine") from None


async def token_text(context: Context, token_id: int, *givens: Given | None) -> str | None:
    """The token's text from the first model that has a tokenizer at hand."""
    for given in givens:
        if given is None or given.loaded is None or not 0 <= token_id < 2**31:
            continue
        text = await context.sources.token_text(given.loaded, token_id)
        if text is not None:
            return text
    return None


def constant(text: str | None) -> Callable[[int], str | None] | None:
    """A look-up that knows one answer."""
    return None if text is None else lambda _token_id: text
