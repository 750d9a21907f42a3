"""Every overlay renders, is valid Kubernetes, passes the strictest pod policy, and keeps what the operations page says."""

import ast
import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from pods import container, containers, environment, pod_specs, violations
from service import ROOT

from app.integrations.vllm.layer_order import asked_points
from app.integrations.vllm.settings import connector_settings
from app.settings import ENV_PREFIX, Settings

OVERLAYS = ("base", "overlays/metadata-only", "overlays/target-and-drafter", "overlays/vllm-attached")
# resource.k8s.io/v1 exists from 1.34 on.
VERSIONS = {
    "base": ("1.33", "1.34", "1.35", "1.37"),
    "overlays/metadata-only": ("1.33", "1.34", "1.35", "1.37"),
    "overlays/target-and-drafter": ("1.34", "1.35", "1.37"),
    "overlays/vllm-attached": ("1.33", "1.34", "1.35", "1.37"),
}
KNOWN = {f"{ENV_PREFIX}{name.upper()}" for name in Settings.model_fields}


@pytest.fixture(params=OVERLAYS)
def overlay(request, rendered):
    return request.param, rendered[request.param]


@pytest.mark.parametrize(
    ("name", "version"), [(name, version) for name in OVERLAYS for version in VERSIONS[name]]
)
def test_it_is_valid_kubernetes(rendered, tmp_path, name, version):
    path = tmp_path / "objects.yaml"
    path.write_text(yaml.safe_dump_all(rendered[name]))
    validate = Path(sys.executable).with_name("kubernetes-validate")
    done = subprocess.run(
        [str(validate), "--strict", "-k", version, str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout + done.stderr


def test_a_misspelt_field_would_be_seen(rendered, tmp_path):
    objects = copy.deepcopy(rendered["base"])
    pod = next(iter(pod_specs(objects).values()))
    pod["initContainers"][0]["restartPolicyy"] = "Always"
    path = tmp_path / "objects.yaml"
    path.write_text(yaml.safe_dump_all(objects))
    validate = Path(sys.executable).with_name("kubernetes-validate")
    done = subprocess.run(
        [str(validate), "--strict", "-k", "1.35", str(path)], capture_output=True, check=False
    )
    assert done.returncode != 0


def test_pod_security_restricted(overlay):
    pods = pod_specs(overlay[1])
    assert pods
    assert {name: found for name, pod in pods.items() if (found := violations(pod))} == {}


@pytest.mark.parametrize(
    "spoil",
    [
        lambda pod: pod.update(hostIPC=True),
        lambda pod: pod.update(volumes=[{"name": "x", "hostPath": {"path": "/dev/shm"}}]),
        lambda pod: pod["containers"][0]["securityContext"].pop("allowPrivilegeEscalation"),
        lambda pod: pod["containers"][0]["securityContext"]["capabilities"].update(add=["SYS_PTRACE"]),
        lambda pod: pod["securityContext"].pop("seccompProfile"),
        lambda pod: pod["containers"][0]["securityContext"].update(runAsUser=0),
    ],
)
def test_the_policy_check_can_fail(rendered, spoil):
    pod = copy.deepcopy(next(iter(pod_specs(rendered["base"]).values())))
    assert violations(pod) == []
    spoil(pod)
    assert violations(pod)


def test_the_sidecar_is_a_native_one_with_numeric_probes(overlay):
    for pod in pod_specs(overlay[1]).values():
        sidecar = container(pod, "draftport")
        assert sidecar in pod["initContainers"]
        assert sidecar["restartPolicy"] == "Always"
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert sidecar[probe]["httpGet"]["port"] == 8000
        assert sidecar["startupProbe"]["httpGet"]["path"] == "/startupz"
        assert sidecar["livenessProbe"]["httpGet"]["path"] == "/livez"
        assert sidecar["lifecycle"]["preStop"]
        assert pod["automountServiceAccountToken"] is False
        assert "memory" in sidecar["resources"]["limits"]
        assert {"cpu", "memory"} <= set(sidecar["resources"]["requests"])


def test_there_is_time_to_end_well(overlay):
    for pod in pod_specs(overlay[1]).values():
        sidecar = container(pod, "draftport")
        before = int(sidecar["lifecycle"]["preStop"]["exec"]["command"][1])
        finish = int(environment(sidecar)["DRAFTPORT_SHUTDOWN_TIMEOUT_S"])
        assert pod["terminationGracePeriodSeconds"] > before + finish + 10


def test_every_setting_exists_and_every_mount_has_a_volume(overlay):
    for pod in pod_specs(overlay[1]).values():
        volumes = {volume["name"] for volume in pod.get("volumes", [])}
        for one in containers(pod):
            unknown = {name for name in environment(one) if name.startswith(ENV_PREFIX)} - KNOWN
            assert unknown == set()
            assert {mount["name"] for mount in one.get("volumeMounts", [])} <= volumes


def test_ports_of_services_and_policies_are_numbers(overlay):
    for one in overlay[1]:
        if one["kind"] == "Service":
            assert [port["targetPort"] for port in one["spec"]["ports"]] == [8000]
        if one["kind"] == "NetworkPolicy":
            assert [port["port"] for rule in one["spec"]["ingress"] for port in rule["ports"]] == [8000]


def test_services_find_their_pods(overlay):
    objects = overlay[1]
    labels = [one["spec"]["template"]["metadata"]["labels"] for one in objects if one["kind"] == "Deployment"]
    for one in objects:
        if one["kind"] == "Service":
            wanted = one["spec"]["selector"].items()
            assert any(wanted <= found.items() for found in labels)


def test_metadata_needs_no_gpu_and_a_read_only_root(rendered):
    for name in ("base", "overlays/metadata-only"):
        for pod in pod_specs(rendered[name]).values():
            sidecar = container(pod, "draftport")
            assert environment(sidecar)["DRAFTPORT_WORKER"] == "off"
            assert sidecar["securityContext"]["readOnlyRootFilesystem"] is True
            assert "nvidia.com/gpu" not in str(pod)
            assert sidecar["readinessProbe"]["httpGet"]["path"] == "/readyz"
            assert "metadata" in sidecar["image"]


def test_the_full_picture_shares_what_must_be_shared(rendered):
    objects = rendered["overlays/target-and-drafter"]
    [pod] = pod_specs(objects).values()
    holder, drafter = container(pod, "draftport"), container(pod, "drafter")
    assert pod["shareProcessNamespace"] is True
    [claim] = pod["resourceClaims"]
    assert holder["resources"]["claims"] == drafter["resources"]["claims"] == [{"name": claim["name"]}]
    [template] = [one for one in objects if one["kind"] == "ResourceClaimTemplate"]
    assert template["apiVersion"] == "resource.k8s.io/v1"
    assert template["metadata"]["name"] == claim["resourceClaimTemplateName"]
    assert template["metadata"].get("namespace") == "draftport"
    runtime = environment(holder)["DRAFTPORT_RUNTIME_DIR"]
    [shared] = [one for one in holder["volumeMounts"] if runtime.startswith(one["mountPath"] + "/")]
    assert shared in drafter["volumeMounts"]
    [volume] = [one for one in pod["volumes"] if one["name"] == shared["name"]]
    assert volume["emptyDir"]["medium"] == "Memory"
    users = {one["securityContext"]["runAsUser"] for one in (holder, drafter)}
    assert len(users) == 1, "the socket is 0600"
    [config] = [one for one in objects if one["kind"] == "ConfigMap"]
    assert f"{runtime}/worker.sock" in config["data"]["drafter.py"]
    assert not any(key in str(pod) for key in ("hostPath", "hostIPC", "hostPID"))


def test_vllm_and_draftport_find_each_other(rendered):
    """The connector's settings are ones that it has, its module is where it is mounted, and both mean one socket."""
    [pod] = pod_specs(rendered["overlays/vllm-attached"]).values()
    engine, sidecar, connector = (container(pod, name) for name in ("vllm", "draftport", "connector"))
    assert environment(sidecar)["DRAFTPORT_WORKER"] == "attach"
    assert environment(sidecar)["DRAFTPORT_RUNTIME_DIR"] == environment(engine)["DRAFTPORT_RUNTIME_DIR"]
    arguments = dict(one.removeprefix("--").split("=", 1) for one in engine["args"])
    transfer = json.loads(arguments["kv-transfer-config"])
    settings = connector_settings(transfer["kv_connector_extra_config"])
    assert settings.api_url == f"http://127.0.0.1:{arguments['port']}"
    module = ast.parse((ROOT / (transfer["kv_connector_module_path"].replace(".", "/") + ".py")).read_text())
    assert transfer["kv_connector"] in [one.name for one in module.body if isinstance(one, ast.ClassDef)]
    speculative = json.loads(arguments["speculative-config"])
    assert speculative["method"] == "extract_hidden_states"
    asked_points(speculative["draft_model_config"]["hf_config"]["eagle_aux_hidden_state_layer_ids"], 40)
    [mount] = connector["volumeMounts"]
    assert {**mount, "readOnly": True} in engine["volumeMounts"]
    assert environment(engine)["PYTHONPATH"] == mount["mountPath"]
    users = {one["securityContext"]["runAsUser"] for one in (engine, sidecar)}
    assert len(users) == 1, "the socket is 0600"


WORKLOAD = {
    "apiVersion": "apps/v1", "kind": "StatefulSet",
    "metadata": {"name": "engine", "labels": {"draftport.io/sidecar": "metadata"}},
    "spec": {
        "serviceName": "engine", "selector": {"matchLabels": {"app": "engine"}},
        "template": {
            "metadata": {"labels": {"app": "engine"}},
            "spec": {
                "initContainers": [{"name": "fetch", "image": "fetch"}],
                "containers": [{"name": "engine", "image": "engine", "env": [{"name": "A", "value": "1"}]}],
                "volumes": [{"name": "own", "emptyDir": {}}],
            },
        },
    },
}  # fmt: skip


def test_any_stateful_set_takes_the_sidecar_and_keeps_its_own(with_components):
    [pod] = pod_specs(with_components([WORKLOAD], "sidecar")).values()
    assert {one["name"] for one in containers(pod)} == {"fetch", "draftport", "engine"}
    assert {"own", "draftport-models"} <= {one["name"] for one in pod["volumes"]}


def test_a_leader_worker_set_takes_it_in_the_leader(with_components):
    template = {"spec": {"containers": [{"name": "engine", "image": "engine"}]}}
    workload = {
        "apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet",
        "metadata": {"name": "engine", "labels": {"draftport.io/sidecar": "metadata"}},
        "spec": {"leaderWorkerTemplate": {"leaderTemplate": template, "workerTemplate": template, "size": 2}},
    }  # fmt: skip
    pods = pod_specs(with_components([workload], "sidecar"))
    assert container(pods["LeaderWorkerSet/engine/leaderTemplate"], "draftport")["restartPolicy"] == "Always"
    assert len(containers(pods["LeaderWorkerSet/engine/workerTemplate"])) == 1


def test_both_ways_to_inject_are_the_same_sidecar(rendered, with_components):
    template = {"spec": {"containers": [{"name": "engine", "image": "engine"}]}}
    workload = {
        "apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet",
        "metadata": {"name": "engine", "labels": {"draftport.io/sidecar": "metadata"}},
        "spec": {"leaderWorkerTemplate": {"leaderTemplate": template, "workerTemplate": template, "size": 2}},
    }  # fmt: skip
    leader = pod_specs(with_components([workload], "sidecar"))["LeaderWorkerSet/engine/leaderTemplate"]
    stateful = next(iter(pod_specs(with_components([WORKLOAD], "sidecar")).values()))
    assert container(leader, "draftport") == container(stateful, "draftport")


def test_a_workload_without_the_label_stays_as_it_is(with_components):
    plain = copy.deepcopy(WORKLOAD)
    plain["metadata"]["labels"] = {}
    [pod] = pod_specs(with_components([plain], "sidecar")).values()
    assert {one["name"] for one in containers(pod)} == {"fetch", "engine"}


def test_the_token_is_mounted_as_a_directory(with_components):
    [pod] = pod_specs(with_components([WORKLOAD], "sidecar", "token")).values()
    sidecar = container(pod, "draftport")
    path = Path(environment(sidecar)["DRAFTPORT_TOKEN_FILE"])
    [mount] = [one for one in sidecar["volumeMounts"] if one["mountPath"] == str(path.parent)]
    assert "subPath" not in mount


def test_the_variable_names_the_same_gpu_for_both(rendered, with_components):
    objects = copy.deepcopy(rendered["overlays/target-and-drafter"])
    workload = next(one for one in objects if one["kind"] == "Deployment")
    pod = pod_specs([workload])["Deployment/draftport-target"]
    del pod["resourceClaims"]
    for one in containers(pod):
        one["resources"].pop("claims", None)
    [pod] = pod_specs(with_components([workload], "gpu-visible-devices")).values()
    seen = {environment(container(pod, name))["NVIDIA_VISIBLE_DEVICES"] for name in ("draftport", "drafter")}
    assert len(seen) == 1
    assert "void" not in seen


def test_the_pod_monitor_scrapes_by_number(with_components):
    objects = with_components([WORKLOAD], "podmonitor")
    [monitor] = [one for one in objects if one["kind"] == "PodMonitor"]
    assert monitor["spec"]["podMetricsEndpoints"][0]["portNumber"] == 8000
