"""The OpenTelemetry resource of the pushes: the service, process, host and pod that push."""

import os
import socket
import uuid
from collections.abc import Mapping

from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics
from opentelemetry.proto.resource.v1.resource_pb2 import Resource as ResourceMessage
from opentelemetry.sdk.resources import Resource

from vllm_vitals.catalog import engine
from vllm_vitals.exporters.otlp.encode import encode_attributes
from vllm_vitals.records.step import OTHER
from vllm_vitals.store.series import NumberCell
from vllm_vitals.store.store import Store

DEFAULT_SERVICE = "vllm"
VERSION = "service.version"
VERSION_INDEX = engine.INFO.labelnames.index("vllm_version")
DOWNWARD_API = {
    "k8s.pod.name": ("K8S_POD_NAME", "POD_NAME"),
    "k8s.pod.uid": ("K8S_POD_UID", "POD_UID"),
    "k8s.namespace.name": ("K8S_NAMESPACE_NAME", "K8S_NAMESPACE", "POD_NAMESPACE"),
    "k8s.node.name": ("K8S_NODE_NAME", "NODE_NAME"),
    "k8s.container.name": ("K8S_CONTAINER_NAME", "CONTAINER_NAME"),
    "k8s.deployment.name": ("K8S_DEPLOYMENT_NAME",),
    "k8s.cluster.name": ("K8S_CLUSTER_NAME",),
}
"""Attributes, and the variables in which pods usually get them through the downward API."""


def process_resource(
    environ: Mapping[str, str], *, service: str | None, version: str, attributes: Mapping[str, str]
) -> Resource:
    """Return the resource of this process; `version` is vLLM's, empty in a process without vLLM.

    Configured `attributes` replace detected ones, and a configured service name replaces both. Every process start has
    a new `service.instance.id`, so that no receiver confuses two of them.
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
    # Outside Kubernetes the shorter names mean something else.
    in_cluster = bool(environ.get("KUBERNETES_SERVICE_HOST"))
    for attribute, variables in DOWNWARD_API.items() if in_cluster else ():
        value = next((environ[name] for name in variables if environ.get(name)), "")
        if value:
            found[attribute] = value
    configured = {"service.name": service} if service else {}
    return Resource({**found, **attributes, **configured})


class PushResource:
    """The resource of each push: the attributes of this process, and the version of the engines that it collects for.

    A receiver may take another resource for another source of the same series. So the version changes only where the
    old one would be wrong: it stays when all engines are down, and it is left out while engines run several versions.
    """

    def __init__(self, process: Resource, store: Store) -> None:
        """`process`: the attributes that never change. A version among them is never replaced."""
        self._process = process
        self._store = store
        self._latest = process
        self._encoded = encode_resource(process)

    def encoded(self) -> bytes:
        """Return the resource of a push that is built now, as an encoded `ResourceMetrics`."""
        latest = self._current()
        if latest is not self._latest:
            self._latest, self._encoded = latest, encode_resource(latest)
        return self._encoded

    def _current(self) -> Resource:
        versions = set() if VERSION in self._process.attributes else self._versions()
        known = dict.fromkeys([VERSION], *versions) if len(versions) == 1 else {}
        if versions and self._latest.attributes != {**self._process.attributes, **known}:
            return self._process.merge(Resource(known))
        return self._latest

    def _versions(self) -> set[str]:
        """Return the vLLM versions of the engines that are up."""
        with self._store.lock:
            cells = self._store[engine.UP].cells
            up = {scope for scope, cell in cells.items() if isinstance(cell, NumberCell) and cell.value}
            scope_length = len(engine.INFO.scope.value)
            known = {key[VERSION_INDEX] for key in self._store[engine.INFO].cells if key[:scope_length] in up}
        return known - {"", "unknown", OTHER}


def encode_resource(resource: Resource) -> bytes:
    """Return a resource as an encoded `ResourceMetrics`."""
    message = ResourceMetrics(
        resource=ResourceMessage(attributes=encode_attributes(resource.attributes)), schema_url=resource.schema_url
    )
    return message.SerializeToString()
