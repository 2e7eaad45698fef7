"""Who pushes: the resource that every metric belongs to."""

import os
import socket
import uuid
from collections.abc import Mapping

from opentelemetry.sdk.resources import Resource

DEFAULT_SERVICE = "vllm"
DOWNWARD = {
    "k8s.pod.name": ("K8S_POD_NAME", "POD_NAME"),
    "k8s.pod.uid": ("K8S_POD_UID", "POD_UID"),
    "k8s.namespace.name": ("K8S_NAMESPACE_NAME", "K8S_NAMESPACE", "POD_NAMESPACE"),
    "k8s.node.name": ("K8S_NODE_NAME", "NODE_NAME"),
    "k8s.container.name": ("K8S_CONTAINER_NAME", "CONTAINER_NAME"),
    "k8s.deployment.name": ("K8S_DEPLOYMENT_NAME",),
    "k8s.cluster.name": ("K8S_CLUSTER_NAME",),
}
"""Attributes, and the variables by which pods usually get them through the downward API."""


def resource(
    environ: Mapping[str, str], *, service: str | None, version: str, attributes: Mapping[str, str]
) -> Resource:
    """Return the resource of this process; `version` is vLLM's, `""` where none runs.

    Configured `attributes` win over what is found, and a service name that is set wins over theirs.
    `service.instance.id` is new for every process start, so that no receiver mixes two of them up.
    """
    found: dict[str, str | int] = {
        "service.name": DEFAULT_SERVICE,
        "service.instance.id": str(uuid.uuid4()),
        "host.name": socket.gethostname(),
        "host.arch": {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine),
        "process.pid": os.getpid(),
        "telemetry.sdk.language": "python",
    }
    if version:
        found["service.version"] = version
    # The shorter names mean something else on other machines.
    in_cluster = bool(environ.get("KUBERNETES_SERVICE_HOST"))
    for attribute, variables in DOWNWARD.items() if in_cluster else ():
        value = next((environ[name] for name in variables if environ.get(name)), "")
        if value:
            found[attribute] = value
    chosen = {"service.name": service} if service else {}
    return Resource({**found, **attributes, **chosen})
