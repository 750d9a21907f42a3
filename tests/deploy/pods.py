"""Pods in rendered objects, and what Pod Security *restricted* asks of them.

Source: Kubernetes documentation, Pod Security Standards, profile *restricted* (which includes *baseline*).
"""

VOLUMES = {
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret",
}  # fmt: skip
SECCOMP = {"RuntimeDefault", "Localhost"}


def pod_specs(objects):
    """``name: pod spec`` of every workload."""
    found = {}
    for one in objects:
        name = f"{one['kind']}/{one['metadata']['name']}"
        if one["kind"] in ("Deployment", "StatefulSet"):
            found[name] = one["spec"]["template"]["spec"]
        elif one["kind"] == "LeaderWorkerSet":
            for template in ("leaderTemplate", "workerTemplate"):
                found[f"{name}/{template}"] = one["spec"]["leaderWorkerTemplate"][template]["spec"]
    return found


def containers(pod):
    return [*pod.get("initContainers", []), *pod["containers"]]


def container(pod, name):
    [found] = [one for one in containers(pod) if one["name"] == name]
    return found


def environment(one):
    return {entry["name"]: entry.get("value") for entry in one.get("env", [])}


def violations(pod):
    """Everything that *restricted* forbids."""
    found = [name for name in ("hostNetwork", "hostPID", "hostIPC") if pod.get(name)]
    found += [
        f"volume {volume['name']}"
        for volume in pod.get("volumes", [])
        if len(VOLUMES & set(volume)) != 1 or set(volume) - VOLUMES - {"name"}
    ]
    pod_security = pod.get("securityContext", {})
    found += ["sysctls"] if pod_security.get("sysctls") else []
    for one in containers(pod):
        found += [f"{one['name']}: {what}" for what in _container_violations(one, pod_security)]
    return found


def _container_violations(one, pod_security):
    own = one.get("securityContext", {})
    effective = pod_security | own
    capabilities = own.get("capabilities", {})
    rules = {
        "privileged": not own.get("privileged"),
        "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation") is False,
        "runAsNonRoot": effective.get("runAsNonRoot") is True,
        "runAsUser": effective.get("runAsUser") != 0,
        "capabilities": "ALL" in capabilities.get("drop", []),
        "added capabilities": set(capabilities.get("add", [])) <= {"NET_BIND_SERVICE"},
        "seccompProfile": (effective.get("seccompProfile") or {}).get("type") in SECCOMP,
        "procMount": own.get("procMount", "Default") == "Default",
        "hostPort": not any("hostPort" in port for port in one.get("ports", [])),
        "own security module": not set(own) & {"appArmorProfile", "seLinuxOptions"},
    }
    return [name for name, kept in rules.items() if not kept]
