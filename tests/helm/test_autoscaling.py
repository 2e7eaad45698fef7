"""How many pods there are: HPA and KEDA."""

import re

import pytest

from tests.helm.render import (
    ATTACH,
    SERVE,
    Object,
    merged,
    objects,
    the,
    workload,
)

NAMES = {
    "Deployment": ["demo-vllm-vitals-6d5f8b7c9d-x7k2p", "demo-vllm-vitals-5b9-abcde"],
    "StatefulSet": ["demo-vllm-vitals-0", "demo-vllm-vitals-12"],
}


def scaled(values: Object) -> Object:
    keda = {"enabled": True, "serverAddress": "http://p:9090"}
    layers = merged(SERVE, {"crds": {"keda": "present"}, "autoscaling": {"keda": keda}}, values)
    return dict(the(objects(layers), "ScaledObject")["spec"])


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
def test_keda_asks_for_the_pods_that_it_scales(kind: str) -> None:
    values = merged(
        SERVE,
        {
            "crds": {"keda": "present"},
            "vllm": {"kind": kind},
            "autoscaling": {"keda": {"enabled": True, "serverAddress": "http://p"}},
        },
    )
    found = objects(values)
    spec = the(found, "ScaledObject")["spec"]
    assert spec["scaleTargetRef"] == {
        "apiVersion": "apps/v1",
        "kind": kind,
        "name": workload(found)["metadata"]["name"],
    }
    query = spec["triggers"][0]["metadata"]["query"]
    (pattern,) = re.findall(r'pod=~"([^"]+)"', query)
    assert 'namespace="llm"' in query
    for name in NAMES[kind]:
        assert re.fullmatch(pattern, name)
    other = "StatefulSet" if kind == "Deployment" else "Deployment"
    for name in [*NAMES[other], "demo-vllm-vitals-otel-6d5f8b7c9d-x7k2p", "demo-vllm-vitals-test"]:
        assert not re.fullmatch(pattern, name), name
    assert "replicas" not in workload(found)["spec"], "two would set it"


def test_keda_holds_on_when_series_are_gone() -> None:
    """A missing series is a failure, and after some failures there are as many pods as may be."""
    spec = scaled({})
    (trigger,) = spec["triggers"]
    assert trigger["metricType"] == "AverageValue", "KEDA falls back for no other"
    assert trigger["metadata"]["ignoreNullValues"] == "false"
    assert "vector(0)" not in trigger["metadata"]["query"]
    assert spec["fallback"] == {"failureThreshold": 4, "replicas": 4}
    assert scaled({"autoscaling": {"keda": {"fallback": {"replicas": 2}}}})["fallback"]["replicas"] == 2
    assert scaled({"autoscaling": {"keda": {"fallback": {"replicas": 0}}}})["fallback"]["replicas"] == 0


def test_keda_wakes_from_zero() -> None:
    """At zero there is no series of ours, which is no failure then; somebody else's tells that requests wait."""
    spec = scaled({"autoscaling": {"minReplicas": 0, "keda": {"wakeQuery": "sum(waiting)"}}})
    assert spec["minReplicaCount"] == 0
    saturation, wake = spec["triggers"]
    assert saturation["metadata"]["query"].endswith("or vector(0)")
    assert wake["metadata"]["query"] == "clamp_max(sum(waiting), 1) or vector(0)"
    assert wake["metadata"]["activationThreshold"] == "0"


def test_keda_looks_at_slos() -> None:
    spec = scaled({"autoscaling": {"burnRate": 2, "saturation": 0.7}, "slos": [{"name": "a", "target": 0.9, "e2e": 1}]})
    saturation, burn = spec["triggers"]
    assert (saturation["metadata"]["threshold"], burn["metadata"]["threshold"]) == ("0.7", "2")
    assert "vllm_slo_target_ratio" in burn["metadata"]["query"]
    assert burn["metricType"] == "AverageValue"


def test_hpa() -> None:
    found = objects(
        merged(
            SERVE, {"autoscaling": {"hpa": {"enabled": True}, "saturation": 0.75, "minReplicas": 2, "maxReplicas": 9}}
        )
    )
    spec = the(found, "HorizontalPodAutoscaler")["spec"]
    assert (spec["minReplicas"], spec["maxReplicas"]) == (2, 9)
    (metric,) = spec["metrics"]
    assert metric["pods"]["metric"]["name"] == "vllm_engine_saturation_ratio"
    assert metric["pods"]["target"] == {"type": "AverageValue", "averageValue": "750m"}
    assert spec["scaleTargetRef"]["name"] == workload(found)["metadata"]["name"]
    assert "replicas" not in workload(found)["spec"]


def test_attach_scales_what_it_is_told() -> None:
    target = {"autoscaling": {"hpa": {"enabled": True}, "target": {"kind": "StatefulSet", "name": "llama"}}}
    spec = the(objects(merged(ATTACH, target)), "HorizontalPodAutoscaler")["spec"]
    assert spec["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "llama"}
