"""``draftport plan``: will this pair work? A table for people, JSON for programs, an exit status for pipelines."""

from __future__ import annotations

import sys
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..drafting.engines import EngineError, parse_engine
from ..drafting.findings import Finding
from ..drafting.load_config import LoadConfigError
from ..drafting.methods import engine_refuses
from ..drafting.pair import family_of
from ..drafting.plan import DraftingPlan, drafting_plan, ordered
from ..drafting.plan_merge import ContradictionError, PlanFields, merge
from ..drafting.vllm_args import VllmArgs, VllmArgsError, parse_vllm_args
from ..sources.errors import SourceError
from .metadata import COULD_NOT_ANSWER, FOUND_ERRORS, SOUND, Named, quiet, read_named
from .output import print_findings, print_json


def run(options: dict[str, Any], vllm_args: str | None, *, as_json: bool) -> int:
    """Prints the plan; the exit status. ``options`` are those of the command line, ``None`` where not given."""
    try:
        args = None if vllm_args is None else parse_vllm_args(vllm_args)
        merged = merge(_fields(options), args)
        if merged.target_name is None and merged.draft_name is None:
            return _failed("name a --target or a --draft, or give --from-vllm-args")
        if merged.method is not None and family_of(merged.method) is None:
            return _failed(f"there is no method {merged.method!r} of speculative decoding")
        with quiet():
            plan, findings = _plan(merged)
    except ContradictionError as error:
        return _failed(
            f"{error.field} differs from what --from-vllm-args says; give it in one of the two places"
        )
    except (SourceError, EngineError, LoadConfigError, VllmArgsError) as error:
        return _failed(error.detail)
    document = msgspec.structs.asdict(plan) | {"findings": findings, "ignored_vllm_args": _ignored(args)}
    if as_json:
        print_json(document)
    else:
        _print(plan, findings, _ignored(args))
    return SOUND if plan.ok else FOUND_ERRORS


def _fields(options: dict[str, Any]) -> PlanFields:
    apart = ("engine", "load_format", "draft_load_format")
    engine, load_format, draft_load_format = (options[name] for name in apart)
    return PlanFields(
        **{name: value for name, value in options.items() if name not in apart},
        engine=None if engine is None else parse_engine(engine),
        load_config=None if load_format is None else {"load_format": load_format},
        draft_load_config=None if draft_load_format is None else {"load_format": draft_load_format},
    )


def _plan(fields: PlanFields) -> tuple[DraftingPlan, tuple[Finding, ...]]:
    target = _read(fields.target_name, fields.target_revision)
    draft = _read(fields.draft_name, fields.draft_revision)
    token_text = next((one.token_text for one in (draft, target) if one is not None and one.token_text), None)
    request = fields.request(
        None if target is None else target.config,
        None if draft is None else draft.config,
        token_text=token_text,
    )
    plan = drafting_plan(request)
    read = [finding for named in (target, draft) if named is not None for finding in named.findings]
    return plan, ordered((*plan.findings, *read))


def _read(name: str | None, revision: str | None) -> Named | None:
    return None if name is None else read_named(name, revision)


def _ignored(args: VllmArgs | None) -> tuple[str, ...]:
    return () if args is None else args.ignored


def _print(plan: DraftingPlan, findings: tuple[Finding, ...], ignored: tuple[str, ...]) -> None:
    table = Table(show_header=False, box=None, pad_edge=False, padding=(0, 2))
    for name, value in _rows(plan):
        table.add_row(Text(name, style="bold"), Text(value))
    console = Console()
    console.print(table)
    if ignored:
        console.print(Text(f"not looked at: {' '.join(ignored)}", style="dim"))
    console.print()
    print_findings(findings)
    errors = sum(finding.severity == "error" for finding in findings)
    verdict = "this pair is sound" if plan.ok else f"this pair will not work: {errors} error(s)"
    console.print(Text(verdict, style="bold green" if plan.ok else "bold red"))


def _rows(plan: DraftingPlan) -> list[tuple[str, str]]:
    rows = [("method", _method(plan)), ("engine", str(plan.engine))]
    if plan.mask_token is not None:
        rows.append(("mask token", _mask_token(plan)))
    if plan.load_config is not None:
        rows.append(("load format", _load_format(plan)))
    rows.append(("placement", _placement(plan)))
    if plan.hidden_states is not None:
        rows += _hidden_states(plan)
    rows.append(("step", _step(plan)))
    return rows


def _method(plan: DraftingPlan) -> str:
    if plan.method is None:
        return "unknown"
    if plan.engine_method is None:
        refuses = engine_refuses(plan.method, plan.engine)
        return f"{plan.method} ({'the engine refuses it' if refuses else 'what the engine calls it is not known'})"
    if plan.engine_method == plan.method:
        return plan.method
    return f"{plan.method} (the engine is told {plan.engine_method})"


def _mask_token(plan: DraftingPlan) -> str:
    mask = plan.mask_token
    if mask is None or mask.mask_token_id is None:
        return "none"
    text = f" {mask.token!r}" if mask.token is not None else ""
    return f"{mask.mask_token_id}{text} from {mask.source}"


def _load_format(plan: DraftingPlan) -> str:
    answer = plan.load_config
    if answer is None:
        return "-"
    really = answer.engine_draft_load_format or "unknown"
    target, draft = answer.target.load_format, answer.draft.load_format
    differs = "" if really == draft else f" (the engine uses {really})"
    return f"target {target}, draft {draft}{differs}"


def _placement(plan: DraftingPlan) -> str:
    place = plan.placement
    if place.draft_ranks is None:
        return f"no draft to place; target on {place.target_ranks} rank(s)"
    first, last = place.draft_ranks[0], place.draft_ranks[-1]
    ranks = f"rank {first}" if first == last else f"ranks {first}-{last}"
    return f"draft on pipeline stage {place.draft_stage}, {ranks} of {place.target_ranks}"


def _hidden_states(plan: DraftingPlan) -> list[tuple[str, str]]:
    hidden = plan.hidden_states
    if hidden is None:
        return []
    source: str = hidden.source
    if hidden.layer_ids is not None:
        points = "unknown" if hidden.capture_points is None else ", ".join(map(str, hidden.capture_points))
        source += f", layers {', '.join(map(str, hidden.layer_ids))} (capture points {points})"
    norm = {"pre": "before", "post": "after"}.get(hidden.norm or "")
    size = f"{hidden.width or '?'} wide, {hidden.dtype or 'dtype unknown'}"
    if hidden.bytes_per_token is not None:
        size += f", {hidden.bytes_per_token} bytes per token"
    if hidden.buffer_bytes is not None:
        size += f", {hidden.buffer_bytes / 2**20:.1f} MiB for {hidden.rows} rows"
    return [("hidden states", source), ("", f"{size}{f', {norm} the final norm' if norm else ''}")]


def _step(plan: DraftingPlan) -> str:
    budget = plan.budget
    if budget.required_rows is None:
        return "rows unknown: give --max-num-seqs and --num-speculative-tokens"
    of = "" if budget.max_num_batched_tokens is None else f" of {budget.max_num_batched_tokens}"
    return f"{budget.required_rows} rows{of} ({budget.max_num_seqs} requests x {budget.rows_per_request})"


def _failed(detail: str) -> int:
    sys.stderr.write(f"draftport: {detail}\n")
    return COULD_NOT_ANSWER
