"""What cannot be right is refused before anything is installed, in words that name the value."""

from typing import Any

import pytest

from tests.helm.conftest import majors
from tests.helm.render import ATTACH, CHART, SERVE, Refused, merged, notes, objects

SCHEMA: list[tuple[dict[str, Any], str]] = [
    ({"mode": "both"}, "mode"),
    ({"mdoe": "serve"}, "mdoe"),
    ({"exporters": {"prometheus": {"port": 80}}}, "port"),
    ({"exporters": {"prometheus": {"port": 70000}}}, "port"),
    ({"exporters": {"prometheus": {"port": "x"}}}, "port"),
    ({"exporters": {"prometheus": {"enabled": "yes"}}}, "enabled"),
    ({"exporters": {"prometheus": {"tls": {"cert": "x"}}}}, "cert"),
    ({"exporters": {"otlp": {"protocol": "http/json"}}}, "protocol"),
    ({"exporters": {"otlp": {"temporality": "both"}}}, "temporality"),
    ({"exporters": {"otlp": {"histograms": "native"}}}, "histograms"),
    ({"exporters": {"otlp": {"interval": 0}}}, "interval"),
    ({"exporters": {"otlp": {"timeout": 301}}}, "timeout"),
    ({"exporters": {"otlp": {"headers": {"a": "secret"}}}}, "headers"),
    ({"exporters": {"otlp": {"endpoint": "http://user:password@collector"}}}, "endpoint"),
    ({"exporters": {"otlp": {"resource": {"a": 1}}}}, "a"),
    ({"sidecar": {"enable": True}}, "enable"),
    ({"gpu": {"interval": 0.01}}, "interval"),
    ({"slos": [{"name": "A B", "target": 0.9, "e2e": 1}]}, "name"),
    ({"slos": [{"name": "a", "target": 1.5, "e2e": 1}]}, "target"),
    ({"slos": [{"name": "a", "target": "99 percent", "e2e": 1}]}, "target"),
    ({"slos": [{"name": "a", "target": 0.9, "e2e": "5 minutes"}]}, "e2e"),
    ({"slos": [{"name": "a", "target": 0.9, "p99": 1}]}, "p99"),
    ({"slos": [{"target": 0.9, "e2e": 1}]}, "name"),
    ({"extraSettings": {"stale_afer": 1}}, "stale_afer"),
    ({"extraSettings": {"stale_after": -1}}, "stale_after"),
    ({"extraSettings": {"prometheus": {"port": 1}}}, "port"),
    ({"extraSettings": {"otlp": {"headers": {"a": "b"}}}}, "headers"),
    ({"extraSettings": {"wire": {"sidecar": "/x"}}}, "sidecar"),
    ({"extraSettings": {"slos": []}}, "slos"),
    ({"image": {"digest": "sha256:1"}}, "digest"),
    ({"image": {"pullPolicy": "Sometimes"}}, "pullPolicy"),
    ({"vllm": {"kind": "DaemonSet"}}, "kind"),
    ({"vllm": {"replicas": -1}}, "replicas"),
    ({"vllm": {"args": [1]}}, "args"),
    ({"vllm": {"gpus": {"count": -1}}}, "count"),
    ({"vllm": {"cache": {"accessModes": ["Any"]}}}, "accessModes"),
    ({"attach": {"port": 0}}, "port"),
    ({"attach": {"matchLabels": {"a": 1}}}, "a"),
    ({"podMonitor": {"interval": "15"}}, "interval"),
    ({"podMonitor": {"interval": "fast"}}, "interval"),
    ({"podMonitor": {"labels": {}}}, "labels"),
    ({"serviceMonitor": {"sampleLimit": -1}}, "sampleLimit"),
    ({"dashboards": {"labelValue": 1}}, "labelValue"),
    ({"otelCollector": {"kind": "daemonset"}}, "kind"),
    ({"otelCollector": {"replicas": 0}}, "replicas"),
    ({"networkPolicy": {"from": []}}, "from"),
    ({"autoscaling": {"saturation": 0}}, "saturation"),
    ({"autoscaling": {"saturation": 80}}, "saturation"),
    ({"autoscaling": {"maxReplicas": 0}}, "maxReplicas"),
    ({"autoscaling": {"burnRate": -1}}, "burnRate"),
    ({"crds": {"keda": True}}, "keda"),
    ({"service": {"type": "ExternalName"}}, "type"),
    ({"prometheusRule": {"defaultRules": {"engines": {}}}}, "engines"),
    ({"prometheusRule": {"defaultRules": {"engine": {"severity": "fatal"}}}}, "severity"),
    ({"prometheusRule": {"defaultRules": {"engine": {"stalled": {"after": 120}}}}}, "after"),
    ({"prometheusRule": {"defaultRules": {"capacity": {"saturated": {"above": 95}}}}}, "above"),
    ({"prometheusRule": {"defaultRules": {"capacity": {"saturated": {"below": 1}}}}}, "below"),
    ({"price": {"per_gpu_hour": -1}}, "per_gpu_hour"),
    ({"price": {"perHour": 1}}, "perHour"),
]


def test_the_schema_refuses(pytestconfig: pytest.Config) -> None:
    for number, (values, named) in enumerate(SCHEMA):
        for major in majors(pytestconfig, number):
            said = refusal(values, major)
            assert "values don't meet the specifications of the schema" in said, (values, major)
            assert named in said, (values, major)


def refusal(values: dict[str, Any], major: int) -> str:
    """Return in which words values are refused, nothing if they are not."""
    try:
        objects(values, major=major)
    except Refused as refused:
        return str(refused)
    return ""


KEDA = {"keda": {"enabled": True, "serverAddress": "http://p"}}
CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"mode": "serve", "image": {"repository": "r"}}, 'vllm.model is empty: mode "serve" needs'),
    ({"mode": "serve", "vllm": {"model": "m"}}, "image.repository is empty: inject.enabled and sidecar.enabled need"),
    (merged(ATTACH, {"vllm": {"model": "m"}}), 'vllm.model is "m", but mode is "attach"'),
    ({"serviceMonitor": {"enabled": True}}, "podMonitor.enabled and serviceMonitor.enabled are both true"),
    ({"exporters": {"prometheus": {"enabled": False}, "otlp": {"enabled": True, "endpoint": "http://c"}}},
     "exporters.prometheus.enabled is false, but a monitor is enabled"),
    ({"exporters": {"prometheus": {"enabled": False}}, "podMonitor": {"enabled": False}},
     "exporters.prometheus.enabled and exporters.otlp.enabled are both false"),
    ({"exporters": {"prometheus": {"includeNative": True, "joinNative": True}}}, "includeNative and joinNative are both true"),
    ({"exporters": {"prometheus": {"tls": {"enabled": True}}}}, "tls.secretName is empty"),
    ({"exporters": {"prometheus": {"tls": {"clientCASecret": "a"}}}, "podMonitor": {"tlsConfig": {"serverName": "s"}}},
     "clientCASecret is set, but tls.enabled is false"),
    ({"exporters": {"prometheus": {"tls": {"enabled": True, "secretName": "a", "clientCASecret": "a"}}}},
     "podMonitor.tlsConfig is empty, but exporters.prometheus.tls.clientCASecret"),
    ({"exporters": {"prometheus": {"tls": {"enabled": True, "secretName": "a"}}}},
     'podMonitor.tlsConfig is empty, but exporters.prometheus.tls.enabled is true and mode is "attach"'),
    ({"exporters": {"otlp": {"enabled": True}}}, "exporters.otlp.endpoint is empty"),
    ({"exporters": {"otlp": {"endpoint": "http://c"}}}, 'exporters.otlp.endpoint is "http://c", but exporters.otlp.enabled is false'),
    ({"exporters": {"otlp": {"enabled": True, "endpoint": "c:4318"}}}, 'is "c:4318": for http/protobuf it begins with http://'),
    (merged(SERVE, {"sidecar": {"enabled": True}, "exporters": {"prometheus": {"includeNative": True}}}),
     "a sidecar has none of vLLM's own metrics"),
    (merged(ATTACH, {"sidecar": {"enabled": True}}), 'sidecar.enabled is true, but mode is "attach"'),
    (merged(SERVE, {"vllm": {"env": [{"name": "PYTHONPATH", "value": "/x"}]}}), "use inject.pythonPath"),
    (merged(SERVE, {"vllm": {"env": [{"name": "VITALS_CONFIG", "value": "/x"}]}}), "use extraSettings"),
    (merged(SERVE, {"vllm": {"env": [{"name": "VLLM_PLUGINS", "value": "lora"}]}}), 'VLLM_PLUGINS to "lora": without vitals_prometheus'),
    (merged(SERVE, {"vllm": {"replicas": 2, "cache": {"enabled": True}}}), "vllm.cache.accessModes has no ReadWriteMany"),
    (merged(SERVE, {"pdb": {"enabled": True, "minAvailable": 1, "maxUnavailable": 1}}), "pdb.minAvailable and pdb.maxUnavailable"),
    (merged(SERVE, {"autoscaling": {"hpa": {"enabled": True}, **KEDA}}), "autoscaling.hpa.enabled and autoscaling.keda.enabled"),
    (merged(SERVE, {"autoscaling": {"hpa": {"enabled": True}, "minReplicas": 5}}), "autoscaling.minReplicas is 5, more than maxReplicas, 4"),
    (merged(SERVE, {"autoscaling": {"hpa": {"enabled": True}, "minReplicas": 0}}), "an HPA cannot wake a first pod"),
    (merged(SERVE, {"autoscaling": {**KEDA, "minReplicas": 0}}), "keda.wakeQuery is empty"),
    (merged(SERVE, {"autoscaling": {"keda": {"enabled": True}}}), "autoscaling.keda.serverAddress is empty"),
    (merged(ATTACH, {"autoscaling": {"hpa": {"enabled": True}}}), "autoscaling.target.name is empty"),
    (merged(SERVE, {"autoscaling": {"burnRate": 1}}), "autoscaling.burnRate is set, but slos is empty"),
    (merged(ATTACH, {"networkPolicy": {"enabled": True}}), "the chart does not cut off pods that are not its own"),
    ({"otelCollector": {"enabled": True, "prometheus": {"enabled": False}}}, "otelCollector has nowhere to put what it takes"),
    ({"otelCollector": {"enabled": True, "replicas": 2}}, "otelCollector.replicas is 2"),
]  # fmt: skip


def test_contradictions_are_refused(pytestconfig: pytest.Config) -> None:
    for number, (values, words) in enumerate(CONTRADICTIONS):
        for major in majors(pytestconfig, number):
            lines = [line for line in refusal(values, major).splitlines() if line.startswith("- ")]
            assert len(lines) == 1, f"one thing is wrong, and one is said to be: {values}, Helm {major}"
            assert words in lines[0], (values, major)


def test_every_contradiction_is_tested() -> None:
    said = (CHART / "templates" / "_validate.tpl").read_text().count("append $problems")
    shared = 1  # PYTHONPATH and VITALS_CONFIG are told by one line
    elsewhere = 1  # the version of Kubernetes, which is no value
    assert said == len(CONTRADICTIONS) - shared + elsewhere


def test_native_sidecars_need_a_cluster_that_has_them(major: int) -> None:
    values = merged(SERVE, {"sidecar": {"enabled": True}})
    with pytest.raises(Refused, match=r"this is Kubernetes v?1\.28\.9: native sidecars need 1\.29"):
        objects(values, "--kube-version", "1.28.9", major=major)
    assert objects(values, "--kube-version", "1.29.0", major=major)
    assert objects(SERVE, "--kube-version", "1.25.0", major=major)
    with pytest.raises(Refused, match="kubeVersion"):
        objects({}, "--kube-version", "1.24.0", major=major)


def test_all_contradictions_are_said_at_once() -> None:
    with pytest.raises(Refused) as refused:
        objects({"mode": "serve", "serviceMonitor": {"enabled": True}})
    assert str(refused.value).count("\n- ") == 3


def test_notes_say_how_to_see_that_data_arrives() -> None:
    said = notes(merged(ATTACH, {"attach": {"matchLabels": {"app": "vllm"}, "namespaces": ["a", "b"]}}))
    assert 'sum by (namespace, pod, model_name, engine) (vllm_engine_up{namespace=~"a|b"})' in said
    assert "kubectl get pods -A -l 'app=vllm'" in said, "-n takes one namespace"
    assert "on port vitals" in said
    assert "--set podMonitor.additionalLabels.release=NAME --set prometheusRule.additionalLabels.release=NAME" in said
    assert "LEFT OUT" not in said


@pytest.mark.parametrize(
    ("values", "command"),
    [
        ({}, "kubectl get pods -n llm -l 'vllm-vitals/scrape=true'"),
        ({"attach": {"namespaces": ["a"]}}, "kubectl get pods -n a -l"),
        ({"attach": {"namespaces": ["*"]}}, "kubectl get pods -A -l"),
        ({"podMonitor": {"enabled": False}, "serviceMonitor": {"enabled": True}}, "kubectl get services -n llm -l"),
        ({"attach": {"port": "http", "undeclaredPort": 9464}}, "on port 9464."),
    ],
)
def test_notes_name_what_is_scraped(values: dict[str, Any], command: str) -> None:
    assert command in notes(merged(ATTACH, values))


@pytest.mark.parametrize(
    "values",
    [
        SERVE,
        merged(SERVE, {"image": {"repository": ""}, "inject": {"enabled": False}}),
        merged(SERVE, {"tests": {"enabled": False}}),
        ATTACH,
        merged(ATTACH, {"image": {"repository": "r"}, "tests": {"url": "http://v:9464/metrics"}}),
    ],
)
def test_notes_tell_of_a_test_where_there_is_one(values: dict[str, Any]) -> None:
    there = [each for each in objects(values) if each["kind"] == "Pod"]
    assert ("helm test demo -n llm --logs" in notes(values)) == bool(there)


def test_notes_say_what_was_left_out() -> None:
    off = {"crds": {"prometheusOperator": "absent", "keda": "absent"}}
    said = notes(merged(SERVE, off, {"autoscaling": KEDA}))
    assert "LEFT OUT" in said
    assert "monitoring.coreos.com/v1" in said
    assert "keda.sh/v1alpha1" in said
    assert "helm test demo -n llm --logs" in said


def test_notes_name_no_secret() -> None:
    said = notes(
        merged(
            SERVE, {"exporters": {"otlp": {"enabled": True, "endpoint": "https://c", "headersSecret": {"name": "s"}}}}
        )
    )
    assert "Pushes go to https://c" in said
