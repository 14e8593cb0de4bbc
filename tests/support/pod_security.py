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


def violations(pod: Mapping[str, Any]) -> list[str]:
    """Return what the profile forbids in the specification of a pod, and what ours asks for beyond it."""
    return [
        *_of_pod(pod),
        *(found for container in _containers(pod) for found in _of_container(pod, container)),
    ]


def _containers(pod: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [*pod.get("initContainers", []), *pod["containers"]]


def _of_pod(pod: Mapping[str, Any]) -> Iterator[str]:
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.get(name):
            yield name
    for volume in pod.get("volumes", []):
        if not VOLUMES & set(volume):
            yield f"volume {volume['name']}"
    if pod.get("automountServiceAccountToken") is not False:
        yield "the token of the service account is mounted"


def _of_container(pod: Mapping[str, Any], container: Mapping[str, Any]) -> Iterator[str]:
    own, of_pod = container.get("securityContext", {}), pod.get("securityContext", {})
    both = {**of_pod, **own}
    name = container["name"]
    if both.get("runAsNonRoot") is not True or both.get("runAsUser", 1) == 0:
        yield f"{name} may run as root"
    if both.get("seccompProfile", {}).get("type") not in {"RuntimeDefault", "Localhost"}:
        yield f"{name} has no seccomp profile"
    if own.get("allowPrivilegeEscalation") is not False:
        yield f"{name} may gain privileges"
    if own.get("privileged"):
        yield f"{name} is privileged"
    capabilities = own.get("capabilities", {})
    if capabilities.get("drop") != ["ALL"] or capabilities.get("add"):
        yield f"{name} keeps capabilities"
    if any("hostPort" in port for port in container.get("ports", [])):
        yield f"{name} takes a port of the node"
    # Beyond the profile:
    if own.get("readOnlyRootFilesystem") is not True:
        yield f"{name} may write to its root"
    if "memory" not in container.get("resources", {}).get("limits", {}):
        yield f"{name} has no limit of memory"
