"""Dashboard and alerts parse, and speak of metrics that exist."""

import json
import re

import pytest
import yaml
from service import ROOT

MONITORING = ROOT / "deploy" / "monitoring"


def expressions():
    dashboard = json.loads((MONITORING / "dashboard.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield f"panel {panel['title']}", target["expr"]
    for group in yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"]:
        for rule in group["rules"]:
            yield f"alert {rule['alert']}", rule["expr"]


@pytest.fixture(scope="module")
def known(service):
    """Series and label names that the service shows."""
    service.http.post("/v1/mask-token", json={"config": {}})
    service.http.get("/v1/mask-token", params={"model": "org/name"})
    text = service.http.get("/metrics").text
    names = set(re.findall(r"^(draftport_\w+)", text, re.MULTILINE))
    labels = set(re.findall(r'[{,](\w+)="', text)) | {"job", "instance"}
    return names, labels


@pytest.mark.parametrize(("where", "expression"), list(expressions()), ids=lambda value: str(value)[:40])
def test_it_speaks_of_what_exists(known, where, expression):
    names, labels = known
    used = set(re.findall(r"\bdraftport_\w+", expression))
    assert used
    assert used <= names, used - names
    for selector in re.findall(r"\{([^}]*)\}", expression):
        assert set(re.findall(r"(\w+)\s*(?:=~|!=|=|!~)", selector)) <= labels
    for opening, closing in ("()", "{}", "[]"):
        assert expression.count(opening) == expression.count(closing)


def test_codes_and_states_in_alerts_exist():
    from app.api.metrics import STATES
    from app.api.problem import PROBLEMS

    text = (MONITORING / "alerts.yaml").read_text()
    for states in re.findall(r'state=~?"([^"]+)"', text):
        assert set(states.split("|")) <= set(STATES)
    for codes in re.findall(r'(?:code|outcome)=~?"([^"]+)"', text):
        assert set(codes.split("|")) <= set(PROBLEMS)


def test_panels_do_not_overlap():
    panels = json.loads((MONITORING / "dashboard.json").read_text())["panels"]
    taken = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
