"""Every finding has a pair that has it and a fixed pair that does not; every collected report has an answer."""

import importlib.util
from pathlib import Path

import msgspec
import pytest

from app.drafting.catalogue import CATALOGUE, ENTRIES, rows_handled
from app.drafting.catalogue_answers import ANSWER_ENTRIES
from app.drafting.plan import drafting_plan
from app.drafting.plan_request import PlanRequest

_SPEC = importlib.util.spec_from_file_location("plan_examples", Path(__file__).with_name("examples_steps.py"))
_MODULE = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_MODULE)
EXAMPLES = _MODULE.EXAMPLES
MILDNESS = {"error": 0, "warning": 1, "info": 2}

REPORTS = [
    *(f"A{number}" for number in (1, 2, 3, 4, 5, 6, 7, 9, 11)),
    *(f"B{number}" for number in (1, 3, 5, 7, 8, 9)),
    *(f"C{number}" for number in (1, 2, 3, 5, 7, 8, 9, 12, *range(14, 20), *range(21, 31))),
    *(f"S{number}" for number in (1, 3, 4, 5, 6, 7)),
    *(f"D{number}" for number in (1, 2, 3, 6, 7, 9)),
    *(f"E{number}" for number in (*range(1, 12), *range(13, 19))),
    "F2",
]


@pytest.fixture
def request_of(sound, config_of, target_of):
    def make(example, changes):
        changes = dict(changes)
        draft, target = changes.pop("draft", {}), changes.pop("target", {})
        made = {
            "draft_config": config_of(example.draft, **draft) if example.draft else None,
            "target_config": target_of(**target),
        }
        return sound(**made | changes)

    return make


@pytest.mark.parametrize("example", EXAMPLES, ids=[f"{e.code}-{'-'.join(e.rows)}" for e in EXAMPLES])
def test_the_bad_pair_has_it_and_the_fixed_one_does_not(example, request_of, codes):
    found = codes(request_of(example, example.bad))
    assert example.code in found, sorted(found)
    finding = found[example.code]
    assert example.severity in {None, finding.severity}
    assert all(part in finding.detail for part in example.says), finding.detail
    assert finding.detail.endswith(".")
    assert "{" not in finding.detail
    assert finding.see == ENTRIES[example.code].see or ENTRIES[example.code] in ANSWER_ENTRIES
    assert example.code not in codes(request_of(example, example.fixed))


def test_every_report_is_answered_and_nothing_else_is_claimed():
    assert set(rows_handled()) == set(REPORTS)


@pytest.mark.parametrize("row", REPORTS)
def test_a_report_is_answered_by_a_finding_with_an_example_or_by_something_that_needs_none(row):
    entries = [ENTRIES[code] for code in rows_handled()[row]]
    others = [entry for entry in entries if entry.kind != "finding"]
    exemplified = [example for example in EXAMPLES if row in example.rows]
    assert others or exemplified
    for example in exemplified:
        assert row in ENTRIES[example.code].rows


def test_every_finding_of_a_pair_has_an_example():
    worded_elsewhere = {entry.code for entry in ANSWER_ENTRIES}
    wanted = {entry.code for entry in CATALOGUE if entry.kind == "finding"} - worded_elsewhere
    assert wanted == {example.code for example in EXAMPLES} - worded_elsewhere


def test_field_entries_name_fields_of_a_real_plan(sound):
    plan = msgspec.to_builtins(drafting_plan(sound()))
    for entry in CATALOGUE:
        if entry.kind == "field":
            value = plan
            for key in entry.code.split("."):
                assert key in value, entry.code
                value = value[key]


def test_the_sound_pair_is_sound(sound):
    plan = drafting_plan(sound())
    assert plan.ok
    assert plan.findings == ()


def test_plans_of_public_configs_only_say_what_the_catalogue_knows(case):
    plan = drafting_plan(PlanRequest(draft_config=case["config"]))
    assert plan.ok == all(finding.severity != "error" for finding in plan.findings)
    for finding in plan.findings:
        assert MILDNESS[finding.severity] >= MILDNESS[ENTRIES[finding.code].severity], finding.code


@pytest.mark.parametrize("example", EXAMPLES, ids=[f"{e.code}-{'-'.join(e.rows)}" for e in EXAMPLES])
def test_what_is_inferred_or_contested_is_no_error(example, request_of):
    for finding in drafting_plan(request_of(example, example.bad)).findings:
        contested = ENTRIES[finding.code].contested
        assert finding.severity != "error" or not (finding.evidence == "inferred" or contested), finding.code


def test_the_worst_comes_first(request_of):
    [example] = [example for example in EXAMPLES if example.code == "tap_out_of_range"]
    severities = [MILDNESS[f.severity] for f in drafting_plan(request_of(example, example.bad)).findings]
    assert severities == sorted(severities)
    assert severities[0] == 0
