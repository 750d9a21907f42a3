import os
import shutil
import subprocess

import pytest
import yaml
from service import ROOT

DEPLOY = ROOT / "deploy"
RENDERED = ("base", "overlays/metadata-only", "overlays/target-and-drafter", "overlays/vllm-attached")


def render(directory):
    """What ``kubectl apply -k`` would send, as objects."""
    done = subprocess.run(
        ["kubectl", "kustomize", str(directory)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


@pytest.fixture(scope="session")
def rendered():
    """``rendered[name]``: the objects of every overlay, each rendered once."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not on the PATH")
    return {name: render(DEPLOY / name) for name in RENDERED}


@pytest.fixture
def with_components(tmp_path):
    """``with_components(objects, *components)``: objects with components of deploy/ applied."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not on the PATH")

    def apply(objects, *components):
        directory = tmp_path / "overlay"
        directory.mkdir(exist_ok=True)
        (directory / "objects.yaml").write_text(yaml.safe_dump_all(objects))
        relative = [os.path.relpath(DEPLOY / "components" / name, directory.resolve()) for name in components]
        kustomization = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": ["objects.yaml"],
            "components": relative,
        }
        (directory / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
        return render(directory)

    return apply
