"""Who may reach what."""

from typing import Any

from tests.helm.render import (
    SERVE,
    Object,
    merged,
    objects,
    of_kind,
    selects,
    template,
    the,
)


def allowed(policy: Object, port: str) -> list[Any]:
    """Return the peers that may reach a port."""
    rules = [rule for rule in policy["spec"]["ingress"] if port in [each["port"] for each in rule["ports"]]]
    return [peer for rule in rules for peer in rule["from"]]


def test_network_policy_lets_in_who_is_named() -> None:
    policy = {"enabled": True, "apiFrom": [{"namespaceSelector": {"matchLabels": {"a": "gateway"}}}], "otlpFrom": []}
    found = objects(merged(SERVE, {"networkPolicy": policy, "otelCollector": {"enabled": True}}))
    vllm, collector = (
        the(found, "NetworkPolicy", "demo-vllm-vitals"),
        the(found, "NetworkPolicy", "demo-vllm-vitals-otel"),
    )
    assert selects(vllm["spec"]["podSelector"], template(found)["metadata"]["labels"])
    assert selects(collector["spec"]["podSelector"], template(found, "otel-collector")["metadata"]["labels"])
    assert not selects(vllm["spec"]["podSelector"], template(found, "otel-collector")["metadata"]["labels"])
    monitoring = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    assert allowed(vllm, "http") == policy["apiFrom"]
    assert monitoring in allowed(vllm, "vitals")
    (test,) = [peer for peer in allowed(vllm, "vitals") if peer != monitoring]
    assert selects(test["podSelector"], the(found, "Pod")["metadata"]["labels"])
    assert allowed(collector, "otlp-http") == []
    assert allowed(collector, "prometheus") == [monitoring]
    for each in (vllm, collector):
        assert each["spec"]["policyTypes"] == ["Ingress"]
        for rule in each["spec"]["ingress"]:
            assert rule["from"], "a rule without peers lets everybody in"
            assert rule["ports"], "a rule without ports opens all of them"


def test_network_policy_lets_nobody_in_who_is_not_named() -> None:
    nobody = {"enabled": True, "apiFrom": [], "metricsFrom": [], "otlpFrom": []}
    found = objects(
        merged(SERVE, {"networkPolicy": nobody, "tests": {"enabled": False}, "otelCollector": {"enabled": True}})
    )
    assert [each["spec"]["ingress"] for each in of_kind(found, "NetworkPolicy")] == [[], []]


def test_network_policy_of_a_collector_that_its_operator_makes() -> None:
    """Selected by the labels that the OpenTelemetry operator gives its pods; there is no operator here to do so."""
    made = {
        "app.kubernetes.io/managed-by": "opentelemetry-operator", "app.kubernetes.io/part-of": "opentelemetry",
        "app.kubernetes.io/component": "opentelemetry-collector", "app.kubernetes.io/instance": "llm.demo-vllm-vitals-otel",
    }  # fmt: skip
    values = {
        "crds": {"openTelemetryOperator": "present"},
        "otelCollector": {"enabled": True, "kind": "operator"},
        "networkPolicy": {"enabled": True, "egress": {"enabled": True}},
    }
    found = objects(merged(SERVE, values))
    name = the(found, "OpenTelemetryCollector")["metadata"]["name"]
    assert made["app.kubernetes.io/instance"] == f"llm.{name}"
    collector = the(found, "NetworkPolicy", name)["spec"]
    assert selects(collector["podSelector"], made)
    assert [[port["port"] for port in rule["ports"]] for rule in collector["ingress"]] == [[4317, 4318], [8889]]
    (to,) = [rule for rule in the(found, "NetworkPolicy", "demo-vllm-vitals")["spec"]["egress"] if "to" in rule]
    assert selects(to["to"][0]["podSelector"], made)
    assert [port["port"] for port in to["ports"]] == [4317, 4318]
    monitor = the(found, "PodMonitor", name)["spec"]
    assert selects(monitor["selector"], made)
    assert monitor["podMetricsEndpoints"][0]["portNumber"] == 8889
    elsewhere = objects(merged(SERVE, values, {"namespaceOverride": "n" * 63}))
    labels = the(elsewhere, "NetworkPolicy", name)["spec"]["podSelector"]["matchLabels"]
    assert labels["app.kubernetes.io/instance"] == f"{'n' * (62 - len(name))}.{name}", "as the operator shortens it"


def test_network_policy_of_egress() -> None:
    policy: Object = {
        "enabled": True,
        "egress": {"enabled": True, "extra": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}]},
    }
    found = objects(merged(SERVE, {"networkPolicy": policy, "otelCollector": {"enabled": True}}))
    vllm = the(found, "NetworkPolicy", "demo-vllm-vitals")
    assert vllm["spec"]["policyTypes"] == ["Ingress", "Egress"]
    opened = {port["port"] for rule in vllm["spec"]["egress"] for port in rule.get("ports", [])}
    assert opened == {53, 443, "otlp-grpc", "otlp-http"}
    (to,) = [
        rule["to"] for rule in vllm["spec"]["egress"] if "otlp-http" in [each["port"] for each in rule.get("ports", [])]
    ]
    assert selects(to[0]["podSelector"], template(found, "otel-collector")["metadata"]["labels"])
    assert policy["egress"]["extra"][0] in vllm["spec"]["egress"]
