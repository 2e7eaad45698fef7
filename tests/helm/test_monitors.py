"""Everything is scraped, once: selectors, namespaces, ports, TLS."""

import re
from typing import Any

import pytest

from tests.helm.render import (
    ATTACH,
    SERVE,
    Object,
    containers,
    merged,
    objects,
    of_kind,
    ports,
    selects,
    template,
    the,
    variables,
)


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
@pytest.mark.parametrize("sidecar", [False, True])
def test_serve_is_scraped_once_by_pod(kind: str, sidecar: bool) -> None:  # noqa: FBT001
    found = objects(
        merged(
            SERVE,
            {"vllm": {"kind": kind}, "sidecar": {"enabled": sidecar}, "exporters": {"prometheus": {"port": 9999}}},
        )
    )
    monitor = the(found, "PodMonitor")["spec"]
    meta, spec = template(found)["metadata"], template(found)["spec"]
    assert selects(monitor["selector"], meta["labels"])
    assert monitor["namespaceSelector"] == {"matchNames": ["llm"]}
    (endpoint,) = monitor["podMetricsEndpoints"]
    assert ports(spec)[endpoint["port"]] == 9999
    serving = containers(spec)["vitals" if sidecar else "vllm"]
    assert endpoint["port"] in [each["name"] for each in serving["ports"]]
    assert endpoint["path"] == "/metrics"
    assert not of_kind(found, "ServiceMonitor")


def test_serve_is_scraped_once_by_service() -> None:
    found = objects(
        merged(
            SERVE,
            {"podMonitor": {"enabled": False}, "serviceMonitor": {"enabled": True}, "vllm": {"kind": "StatefulSet"}},
        )
    )
    monitor = the(found, "ServiceMonitor")["spec"]
    (service,) = [
        each for each in of_kind(found, "Service") if selects(monitor["selector"], each["metadata"]["labels"])
    ]
    (port,) = [each for each in service["spec"]["ports"] if each["name"] == monitor["endpoints"][0]["port"]]
    assert ports(template(found)["spec"])[port["targetPort"]] == 9464
    assert selects({"matchLabels": service["spec"]["selector"]}, template(found)["metadata"]["labels"])
    assert not of_kind(found, "PodMonitor")


@pytest.mark.parametrize(
    ("attach", "labels", "others"),
    [
        ({}, {"vllm-vitals/scrape": "true"}, {"app": "vllm"}),
        ({"matchLabels": {"app": "vllm"}}, {"app": "vllm"}, {"vllm-vitals/scrape": "true"}),
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["a", "b"]}]}, {"app": "b"}, {"app": "c"}),
        ({"matchLabels": {"x": "1"}, "matchExpressions": [{"key": "app", "operator": "Exists"}]}, {"x": "1", "app": ""}, {"x": "1"}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["PodMonitor", "ServiceMonitor"])
def test_attach_selects_what_it_is_told(
    kind: str, attach: Object, labels: dict[str, str], others: dict[str, str]
) -> None:
    pick = {"podMonitor": {"enabled": kind == "PodMonitor"}, "serviceMonitor": {"enabled": kind == "ServiceMonitor"}}
    selector = the(objects(merged(ATTACH, pick, {"attach": attach})), kind)["spec"]["selector"]
    assert selects(selector, labels)
    assert not selects(selector, others)


@pytest.mark.parametrize(
    ("namespaces", "wanted"),
    [([], {"matchNames": ["llm"]}), (["a", "b"], {"matchNames": ["a", "b"]}), (["*"], {"any": True})],
)
def test_attach_looks_where_it_is_told(namespaces: list[str], wanted: Object) -> None:
    found = objects(merged(ATTACH, {"attach": {"namespaces": namespaces}}))
    assert the(found, "PodMonitor")["spec"]["namespaceSelector"] == wanted


@pytest.mark.parametrize(
    ("port", "pod", "service"),
    [("metrics", {"port": "metrics"}, {"port": "metrics"}), (8000, {"portNumber": 8000}, {"targetPort": 8000})],
)
def test_attach_takes_a_port_by_name_or_number(port: Any, pod: Object, service: Object) -> None:
    endpoint = the(objects(merged(ATTACH, {"attach": {"port": port}})), "PodMonitor")["spec"]["podMetricsEndpoints"][0]
    assert {key: value for key, value in endpoint.items() if "ort" in key} == pod
    by_service = {"podMonitor": {"enabled": False}, "serviceMonitor": {"enabled": True}, "attach": {"port": port}}
    endpoint = the(objects(merged(ATTACH, by_service)), "ServiceMonitor")["spec"]["endpoints"][0]
    assert {key: value for key, value in endpoint.items() if "ort" in key} == service


@pytest.mark.parametrize("address", ["10.0.0.1:8000", "[fd00::1]:8000"])
def test_attach_scrapes_a_port_that_nobody_declared(address: str) -> None:
    """As Prometheus relabels: the whole of the source must match, and `$1` is what is in the parentheses."""
    values = {
        "attach": {"port": "http", "undeclaredPort": 9464},
        "podMonitor": {"relabelings": [{"action": "labeldrop", "regex": "x"}]},
    }
    endpoint = the(objects(merged(ATTACH, values)), "PodMonitor")["spec"]["podMetricsEndpoints"][0]
    assert endpoint["port"] == "http"
    first, second = endpoint["relabelings"]
    assert first["sourceLabels"] == [first["targetLabel"]] == ["__address__"]
    found = re.fullmatch(first["regex"], address)
    assert found
    assert first["replacement"].replace("$1", found[1]) == address.replace("8000", "9464")
    assert second == {"action": "labeldrop", "regex": "x"}


@pytest.mark.parametrize("name", ["podMonitor", "serviceMonitor"])
def test_what_a_monitor_is_told_it_says(name: str) -> None:
    given = {
        "enabled": True, "namespace": "monitoring", "additionalLabels": {"release": "kps"}, "interval": "7s", "scrapeTimeout": "3s",
        "honorLabels": True, "relabelings": [{"targetLabel": "a", "replacement": "b"}],
        "metricRelabelings": [{"regex": "c", "action": "labeldrop"}], "sampleLimit": 100, "tlsConfig": {"insecureSkipVerify": True},
        {"podMonitor": "podTargetLabels", "serviceMonitor": "targetLabels"}[name]: ["app"],
    }  # fmt: skip
    found = objects(merged(ATTACH, {"podMonitor": {"enabled": False}}, {name: given}))
    monitor = the(found, name[0].upper() + name[1:])
    assert monitor["metadata"]["namespace"] == "monitoring"
    assert monitor["metadata"]["labels"]["release"] == "kps"
    endpoint = monitor["spec"][{"podMonitor": "podMetricsEndpoints", "serviceMonitor": "endpoints"}[name]][0]
    said = {**monitor["spec"], **endpoint}
    for key in set(given) - {"enabled", "namespace", "additionalLabels"}:
        assert said[key] == given[key], key
    assert endpoint["scheme"] == "https"


def test_tls_is_scraped_as_it_is_served() -> None:
    tls = {"exporters": {"prometheus": {"tls": {"enabled": True, "secretName": "cert"}}}}
    found = objects(merged(SERVE, tls))
    endpoint = the(found, "PodMonitor")["spec"]["podMetricsEndpoints"][0]
    assert endpoint["scheme"] == "https"
    assert endpoint["tlsConfig"]["ca"]["secret"] == {"name": "cert", "key": "ca.crt"}
    services = [f"{each['metadata']['name']}.llm.svc" for each in of_kind(found, "Service")]
    assert endpoint["tlsConfig"]["serverName"] in services
    check = variables(the(found, "Pod")["spec"]["containers"][0])
    assert check["CHECK_URL"] == f"https://{endpoint['tlsConfig']['serverName']}:9464/metrics"
