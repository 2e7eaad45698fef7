"""Who pushes: the resource that every metric belongs to."""

import os
import socket
import uuid
from collections.abc import Mapping

from opentelemetry.sdk.resources import Resource

from vllm_vitals.catalog import engine
from vllm_vitals.records.step import OTHER
from vllm_vitals.store.series import NumberCell
from vllm_vitals.store.store import Store

DEFAULT_SERVICE = "vllm"
VERSION = "service.version"
TOLD_AT = engine.INFO.labelnames.index("vllm_version")
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
        found[VERSION] = version
    # The shorter names mean something else on other machines.
    in_cluster = bool(environ.get("KUBERNETES_SERVICE_HOST"))
    for attribute, variables in DOWNWARD.items() if in_cluster else ():
        value = next((environ[name] for name in variables if environ.get(name)), "")
        if value:
            found[attribute] = value
    chosen = {"service.name": service} if service else {}
    return Resource({**found, **attributes, **chosen})


class Identity:
    """The resource of every push: what is known of this process, and the version of the engines that it collects for.

    A receiver may take another resource for another source of the same series, so it changes only where it would be
    untrue else: the version stays when no engine is up any more, and goes while there are engines of several versions.
    """

    def __init__(self, known: Resource, store: Store) -> None:
        """`known`: what never changes. A version in it, found or configured, stays whatever the engines tell."""
        self._known = known
        self._store = store
        self._latest = known

    def resource(self) -> Resource:
        """Return the resource of a push that is made now."""
        versions = set() if VERSION in self._known.attributes else self._versions()
        told = dict.fromkeys([VERSION], *versions) if len(versions) == 1 else {}
        if versions and self._latest.attributes != {**self._known.attributes, **told}:
            self._latest = self._known.merge(Resource(told))
        return self._latest

    def _versions(self) -> set[str]:
        """Return which vLLM the engines run that are up, as they told."""
        with self._store.lock:
            cells = self._store[engine.UP].cells
            up = {scope for scope, cell in cells.items() if isinstance(cell, NumberCell) and cell.value}
            told = {key[TOLD_AT] for key in self._store[engine.INFO].cells if key[: len(engine.INFO.scope.value)] in up}
        return told - {"", "unknown", OTHER}
