"""The drafting plan: what an engine will make of a pair of models, told before it is started."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from .budget import Budget, make_budget
from .candidates import Candidate
from .engines import EngineRef
from .findings import Finding, has_errors
from .load_config import LoadConfig
from .load_config_answer import LoadConfigAnswer, answer_load_config
from .mask_token import MaskTokenError
from .mask_token_answer import MaskTokenAnswer, answer_mask_token
from .pair import PARALLEL_DRAFTING, Pair, read_pair
from .pair_findings_layers import layer_findings
from .pair_findings_methods import method_findings
from .pair_findings_models import mask_token_findings, model_findings
from .pair_findings_steps import engine_findings, parallel_findings, step_findings
from .placement import Placement, has_weights, place
from .plan_hidden_states import PlannedHiddenStates, plan_hidden_states
from .plan_request import PlanRequest

_RANK = {"error": 0, "warning": 1, "info": 2}


class PlanMaskToken(Struct, frozen=True):
    """The drafter's mask token id; ``None`` where the engine would find none, with every place that names one.

    Attributes:
        mask_token_id: what the engine reads.
        source: dotted path in the raw file.
        translated_from: ``speculators`` or ``text_config`` where the engine translates the file first.
        token: its text, where a tokenizer is at hand.
        candidates: every place that names an id.
    """

    mask_token_id: int | None
    source: str | None = None
    translated_from: str | None = None
    token: str | None = None
    candidates: tuple[Candidate, ...] = ()


class DraftingPlan(Struct, frozen=True, kw_only=True):
    """The answer.

    Attributes:
        ok: no finding of severity ``error``.
        method: the drafter's family, ``None`` when nothing tells.
        engine_method: what the engine wants to be told for it, ``None`` where it refuses.
        engine: for which engine and version.
        mask_token: ``None`` for methods that use none.
        load_config: ``None`` for methods that load no draft.
        placement: which ranks hold the drafter.
        hidden_states: ``None`` for methods that read none.
        budget: rows and tokens of a step.
        findings: the worst first.
    """

    ok: bool
    method: str | None
    engine_method: str | None
    engine: EngineRef
    mask_token: PlanMaskToken | None
    load_config: LoadConfigAnswer | None
    placement: Placement
    hidden_states: PlannedHiddenStates | None
    budget: Budget
    findings: tuple[Finding, ...]


def drafting_plan(request: PlanRequest) -> DraftingPlan:
    """Plans a pair. Whatever the configs hold, there is a plan: what is wrong with them is in its findings."""
    pair = read_pair(request)
    answer, failure = _mask_token(pair)
    load_config = _load_config(pair)
    hidden = plan_hidden_states(pair)
    budget = make_budget(
        pair.method or "",
        pair.engine,
        num_speculative_tokens=pair.num_speculative_tokens,
        max_num_batched_tokens=request.max_num_batched_tokens,
        max_num_seqs=request.max_num_seqs,
    )
    findings = ordered(
        (
            *method_findings(pair),
            *mask_token_findings(pair, answer, failure),
            *(answer.findings if answer is not None else failure.findings if failure is not None else ()),
            *(load_config.findings if load_config is not None else ()),
            *model_findings(pair, hidden),
            *layer_findings(pair, hidden),
            *step_findings(pair, budget),
            *parallel_findings(pair, hidden),
            *engine_findings(pair),
        )
    )
    return DraftingPlan(
        ok=not has_errors(findings),
        method=pair.method,
        engine_method=pair.engine_method,
        engine=pair.engine,
        mask_token=_shown_mask_token(answer, failure),
        load_config=load_config,
        placement=place(pair.method, request.parallel),
        hidden_states=hidden,
        budget=budget,
        findings=findings,
    )


def _mask_token(pair: Pair) -> tuple[MaskTokenAnswer | None, MaskTokenError | None]:
    if pair.method not in PARALLEL_DRAFTING or not (pair.has_draft or pair.target):
        return None, None
    try:
        answer = answer_mask_token(
            pair.raw,
            target=pair.target or None,
            engine=pair.engine,
            token_text=pair.request.token_text,
            duplicate_keys=pair.request.duplicate_keys,
        )
    except MaskTokenError as failure:
        return None, failure
    return answer, None


def _shown_mask_token(answer: MaskTokenAnswer | None, failure: MaskTokenError | None) -> PlanMaskToken | None:
    if failure is not None:
        return PlanMaskToken(None, candidates=failure.candidates)
    if answer is None:
        return None
    return PlanMaskToken(
        answer.mask_token_id, answer.source, answer.translated_from, answer.token, answer.candidates
    )


def _load_config(pair: Pair) -> LoadConfigAnswer | None:
    if pair.method is None or not has_weights(pair.method):
        return None
    return answer_load_config(
        pair.request.load_config or LoadConfig(),
        max(1, pair.request.parallel.pipeline_parallel_size),
        draft_load_config=pair.request.draft_load_config,
        method=pair.method,
        engine=pair.engine,
        draft_config=pair.draft,
    )


def ordered(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """The worst first; what two checks say in the same words is said once."""
    return tuple(sorted(_distinct(findings), key=lambda finding: _RANK[finding.severity]))


def _distinct(findings: tuple[Finding, ...]) -> Iterator[Finding]:
    seen: set[Finding] = set()
    for finding in findings:
        if finding not in seen:
            seen.add(finding)
            yield finding
