"""Dashboards, and the collector."""

import yaml

from tests.helm.render import (
    ATTACH,
    merged,
    objects,
    of_kind,
    ports,
    selects,
    template,
    the,
    variables,
)


def test_boards_are_what_is_generated() -> None:
    from helm.generate.files import BOARDS

    labels = {
        "label": "x_board",
        "labelValue": "yes",
        "folder": "LLM",
        "folderAnnotation": "f",
        "labels": {"k": "v"},
        "namespace": "grafana",
    }
    found = [each for each in objects({"dashboards": labels}) if each["kind"] == "ConfigMap"]
    given = {path.name: path.read_text() for path in BOARDS.glob("*.json")}
    assert {name: text for each in found for name, text in each["data"].items()} == {
        name: f"{text.strip()}\n" for name, text in given.items()
    }
    for each in found:
        (name,) = each["data"]
        yaml.safe_load(each["data"][name])
        assert len(yaml.safe_dump(each).encode()) < 2**20, "a ConfigMap holds 1 MiB"
        assert each["metadata"]["namespace"] == "grafana"
        assert {"x_board": "yes", "k": "v"}.items() <= each["metadata"]["labels"].items()
        assert each["metadata"]["annotations"] == {"f": "LLM"}
    left = sorted(given)[:1]
    without = objects({"dashboards": {"exclude": [name.removesuffix(".json") for name in left]}})
    assert len(of_kind(without, "ConfigMap")) == len(given) - len(left)


def test_collector_takes_and_shows() -> None:
    otel = {"enabled": True, "otlp": {"endpoint": "https://backend", "headersSecret": {"name": "s", "key": "k"}}}
    found = objects(merged(ATTACH, {"otelCollector": otel}))
    config = yaml.safe_load(the(found, "ConfigMap", "demo-vllm-vitals-otel")["data"]["config.yaml"])
    pipeline = config["service"]["pipelines"]["metrics"]
    for part in ("receivers", "processors", "exporters"):
        assert set(pipeline[part]) == set(config[part])
    assert set(config["service"]["extensions"]) == set(config["extensions"])
    spec = template(found, "otel-collector")["spec"]
    listened = {
        config["receivers"]["otlp"]["protocols"]["grpc"]["endpoint"], config["receivers"]["otlp"]["protocols"]["http"]["endpoint"],
        config["exporters"]["prometheus"]["endpoint"], config["extensions"]["health_check"]["endpoint"],
    }  # fmt: skip
    assert listened == {f"0.0.0.0:{port}" for port in ports(spec).values()}
    assert config["exporters"]["otlphttp"] == {
        "endpoint": "https://backend", "headers": {"authorization": "${env:VITALS_AUTHORIZATION}"},
    }  # fmt: skip
    assert variables(spec["containers"][0]) == {"VITALS_AUTHORIZATION": {"secretKeyRef": {"name": "s", "key": "k"}}}
    monitor = the(found, "PodMonitor", "demo-vllm-vitals-otel")["spec"]
    assert selects(monitor["selector"], template(found, "otel-collector")["metadata"]["labels"])
    assert monitor["podMetricsEndpoints"][0]["port"] in ports(spec)


def test_collector_of_your_own() -> None:
    config = {"receivers": {"otlp": {"protocols": {"http": {}}}}, "exporters": {"debug": {}}}
    found = objects(merged(ATTACH, {"otelCollector": {"enabled": True, "config": config}}))
    assert yaml.safe_load(the(found, "ConfigMap", "demo-vllm-vitals-otel")["data"]["config.yaml"]) == config
    assert "livenessProbe" not in template(found, "otel-collector")["spec"]["containers"][0]
