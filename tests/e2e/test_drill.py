"""The drill: two network namespaces as two hosts, a controller in one, the service in the other, SIGTERM under load."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from service import Service

SERVICE_ADDRESS, CONTROLLER_ADDRESS = "10.231.7.1", "10.231.7.2"
CLIENTS = 8


def ip(*arguments):
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)


@pytest.fixture
def hosts():
    """Two namespaces with a cable between them: ``(service's, controller's)``."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("needs root and iproute2 to make network namespaces")
    names = [f"draftport-{side}-{os.getpid()}" for side in ("s", "c")]
    cable = [f"dp{side}{os.getpid() % 100000}" for side in ("s", "c")]
    made = [ip("netns", "add", name) for name in names]
    if any(one.returncode for one in made):
        for name in names:
            ip("netns", "delete", name)
        pytest.skip(f"network namespaces cannot be made here: {made[0].stderr.strip()}")
    ip("link", "add", cable[0], "type", "veth", "peer", "name", cable[1])
    for name, end, address in zip(names, cable, (SERVICE_ADDRESS, CONTROLLER_ADDRESS), strict=True):
        ip("link", "set", end, "netns", name)
        ip("-n", name, "address", "add", f"{address}/24", "dev", end)
        ip("-n", name, "link", "set", end, "up")
        ip("-n", name, "link", "set", "lo", "up")
    yield names
    for name in names:
        ip("netns", "delete", name)


class RemoteService(Service):
    """The service on its own host."""

    namespace = ""

    def command(self):
        inside = ["ip", "netns", "exec", self.namespace]
        return [*inside, *super().command(), "--host", SERVICE_ADDRESS]


def test_sigterm_under_load_loses_no_accepted_request(hosts, tmp_path, cache_dir, capsys):
    service_host, controller_host = hosts
    RemoteService.namespace = service_host
    service = RemoteService(tmp_path, wait=False, CACHE_DIR=cache_dir, LOG_FORMAT="json")
    url = f"http://{SERVICE_ADDRESS}:{service.port}"
    inside = ["ip", "netns", "exec", controller_host, sys.executable]
    probe = f"import httpx; raise SystemExit(httpx.get('{url}/readyz/worker').status_code != 200)"
    try:
        until = time.monotonic() + 90
        while subprocess.run([*inside, "-c", probe], capture_output=True, check=False).returncode:
            assert service.process.poll() is None, service.log()
            assert time.monotonic() < until
        controller = subprocess.Popen(
            [*inside, str(Path(__file__).with_name("load.py")), url, str(CLIENTS)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert controller.stdout.readline() == "asking\n"
        time.sleep(3)
        status = service.stop()
        report = json.loads(controller.communicate(timeout=60)[0])
        taken = {line.get("request_id") for line in service.log_lines()}
        lost = [one for one in report["broken"] if one in taken]
        with capsys.disabled():
            print(f"\ndrill: {report['counts']}, accepted and lost: {len(lost)}, exit status {status}")
        assert status == 0
        assert report["counts"]["answered"] >= CLIENTS
        assert lost == [], "the service's log has them"
    finally:
        service.close()
