"""The restricted profile of Kubernetes' pod security standards, for the fields that our pods use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}
SECCOMP = {"RuntimeDefault", "Localhost"}


def violations(pod: Mapping[str, Any]) -> list[str]:
    """Return what the profile forbids in the specification of a pod, and what ours asks for beyond it."""
    containers = [*pod.get("initContainers", []), *pod["containers"]]
    return [*_of_pod(pod), *(found for container in containers for found in _of_container(pod, container))]


def _of_pod(pod: Mapping[str, Any]) -> Iterator[str]:
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.get(name):
            yield name
    for volume in pod.get("volumes", []):
        if not VOLUMES & set(volume):
            yield f"volume {volume['name']}"
    if pod.get("automountServiceAccountToken") is not False:
        yield "the token of the service account is mounted"


def _of_container(pod: Mapping[str, Any], container: Mapping[str, Any]) -> list[str]:
    own, of_pod = container.get("securityContext", {}), pod.get("securityContext", {})
    both = {**of_pod, **own}
    capabilities = own.get("capabilities", {})
    wrong = {
        "may run as root": both.get("runAsNonRoot") is not True or both.get("runAsUser", 1) == 0,
        "has no seccomp profile": both.get("seccompProfile", {}).get("type") not in SECCOMP,
        "may gain privileges": own.get("allowPrivilegeEscalation") is not False,
        "is privileged": own.get("privileged"),
        "keeps capabilities": capabilities.get("drop") != ["ALL"] or capabilities.get("add"),
        "takes a port of the node": any("hostPort" in port for port in container.get("ports", [])),
        # Beyond the profile:
        "may write to its root": own.get("readOnlyRootFilesystem") is not True,
        "has no limit of memory": "memory" not in container.get("resources", {}).get("limits", {}),
    }
    return [f"{container['name']} {text}" for text, found in wrong.items() if found]
