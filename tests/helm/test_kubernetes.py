"""Every object is one that Kubernetes, or the operator that it is for, takes: no field missing, none unknown."""

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from cloudcoil.models.keda import v1alpha1 as keda
from cloudcoil.models.prometheus_operator import v1 as prometheus

from tests.helm.render import BUILT_IN, SERVE, SETS, Object, objects, of_set, parsed, workload
from tests.helm.typescript import problems

VERSIONS = [f"1.{minor}" for minor in range(29, 38)]
MODELS: dict[str, Any] = {
    "PodMonitor": prometheus.PodMonitor,
    "ServiceMonitor": prometheus.ServiceMonitor,
    "PrometheusRule": prometheus.PrometheusRule,
    "ScaledObject": keda.ScaledObject,
}
WITHOUT_MODEL = {"GrafanaDashboard", "OpenTelemetryCollector"}
"""The first has its test below, the second a model nowhere."""


def test_built_in_objects(values: Path, effort: str) -> None:
    for each in parsed(of_set(values)):
        if each["apiVersion"] in BUILT_IN:
            for version in VERSIONS if effort == "all" else (VERSIONS[0], VERSIONS[-1]):
                kubernetes_validate.validate(each, version, strict=True)
        else:
            assert each["kind"] in {*MODELS, *WITHOUT_MODEL}


def test_the_validator_refuses() -> None:
    deployment = workload(objects(SERVE))
    kubernetes_validate.validate(deployment, "1.37", strict=True)
    deployment["spec"]["template"]["spec"]["containers"][0]["prots"] = []
    with pytest.raises(kubernetes_validate.ValidationError, match="prots"):
        kubernetes_validate.validate(deployment, "1.37", strict=True)


def lost(given: Any, kept: Any, path: str = "") -> list[str]:
    """Return the fields that a model dropped, for it does not know them."""
    if isinstance(given, dict) and isinstance(kept, dict):
        gone = [f"{path}.{key}" for key in given if key not in kept]
        return gone + [one for key in given if key in kept for one in lost(given[key], kept[key], f"{path}.{key}")]
    if isinstance(given, list) and isinstance(kept, list):
        pairs = zip(given, kept, strict=True)
        return [one for number, (one_, two) in enumerate(pairs) for one in lost(one_, two, f"{path}[{number}]")]
    return []


def check(each: Object) -> list[str]:
    model = MODELS[each["kind"]].model_validate(each)
    return lost(each, model.model_dump(by_alias=True, exclude_unset=True, mode="json"))


def test_custom_objects(rendered: list[Object]) -> None:
    for each in rendered:
        if each["kind"] in MODELS:
            assert check(each) == []


def test_the_models_refuse() -> None:
    endpoint = {"port": "vitals", "scrapeIntervall": "1s"}
    monitor = {"apiVersion": "monitoring.coreos.com/v1", "kind": "PodMonitor", "metadata": {"name": "x"}}
    assert check({**monitor, "spec": {"selector": {}, "podMetricsEndpoints": [endpoint]}}) == [
        ".spec.podMetricsEndpoints[0].scrapeIntervall"
    ]
    with pytest.raises(ValueError, match="selector"):
        check({**monitor, "spec": {"podMetricsEndpoints": [endpoint]}})


def test_all_custom_objects_were_seen() -> None:
    """The sets of values make each kind at least once."""
    kinds = {each["kind"] for path in SETS for each in parsed(of_set(path))}
    assert kinds >= set(MODELS)


def test_grafana_dashboards() -> None:
    made = objects(
        {
            "crds": {"grafanaOperator": "present"},
            "dashboards": {"grafanaOperator": {"enabled": True, "allowCrossNamespaceImport": True}, "folder": "a"},
        }
    )
    boards = [each for each in made if each["kind"] == "GrafanaDashboard"]
    for each in boards:
        assert problems("grafana.integreatly.org", "GrafanaDashboardSpec", each["spec"]) == []
    assert problems("grafana.integreatly.org", "GrafanaDashboardSpec", {"jsonn": "{}"}) == [
        "instanceSelector is missing", "jsonn is unknown",
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["deployment", "operator"])
def test_collector_object(kind: str) -> None:
    """No model of OpenTelemetryCollector is published: the fields are those that its documentation shows."""
    made = objects({"crds": {"openTelemetryOperator": "present"}, "otelCollector": {"enabled": True, "kind": kind}})
    found = [each for each in made if each["kind"] == "OpenTelemetryCollector"]
    assert len(found) == (kind == "operator")
    known = {"mode", "replicas", "image", "imagePullPolicy", "env", "podSecurityContext", "securityContext",
             "resources", "config"}  # fmt: skip
    for each in found:
        assert each["apiVersion"] == "opentelemetry.io/v1beta1"
        assert set(each["spec"]) <= known
        assert set(each["spec"]["config"]) == {"extensions", "receivers", "processors", "exporters", "service"}
