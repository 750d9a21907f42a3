"""deploy/openapi.json is what the code describes, and no change of it breaks a client unnoticed."""

import copy
import importlib.machinery
import importlib.util
import json
import subprocess
import sys

import pytest
from service import ROOT

SCRIPT = ROOT / "scripts" / "openapi"


@pytest.fixture(scope="module")
def tool():
    loader = importlib.machinery.SourceFileLoader("openapi_script", str(SCRIPT))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("openapi_script", loader))
    loader.exec_module(module)
    return module


@pytest.fixture
def document():
    return json.loads((ROOT / "deploy" / "openapi.json").read_text())


def test_it_is_up_to_date_and_breaks_nobody():
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda new: new["paths"].pop("/v1/mask-token"), "POST /v1/mask-token is gone"),
        (
            lambda new: new["paths"]["/v1/target"]["get"].update(operationId="x"),
            "operationId getTarget became x",
        ),
        (
            lambda new: new["components"]["schemas"]["LeaseDoc"]["properties"].pop("slot"),
            "LeaseDoc: field slot is gone",
        ),
        (
            lambda new: new["components"]["schemas"]["HiddenStatesRequest"].update(required=["lease_ttl_s"]),
            "field lease_ttl_s became required",
        ),
        (
            lambda new: new["components"]["schemas"]["LeaseDoc"]["properties"]["slot"].update(type="string"),
            "field slot may be string now",
        ),
        (
            lambda new: new["paths"]["/v1/load-config"]["get"]["parameters"].clear(),
            "GET /v1/load-config: parameter engine is gone",
        ),
    ],
    ids=range(6),
)
def test_a_broken_promise_is_named(tool, document, change, said):
    new = copy.deepcopy(document)
    change(new)
    assert any(said in one for one in tool.breaking_changes(document, new))


def test_additions_break_nobody(tool, document):
    new = copy.deepcopy(document)
    new["paths"]["/v2/more"] = new["paths"]["/v1/target"]
    schemas = new["components"]["schemas"]
    schemas["LeaseDoc"]["properties"]["more"] = {"type": "string"}
    schemas["LeaseDoc"]["required"].append("more")
    schemas["HiddenStatesRequest"]["properties"]["more"] = {"type": "string"}
    assert tool.breaking_changes(document, new) == []
