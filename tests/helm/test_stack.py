"""The local stack: its Compose files as Compose merges them, and the configurations that they share with the chart."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from tests.helm.binaries import ROOT
from tests.helm.render import ATTACH, SERVE, containers, merged, objects, template, the
from tests.live.bootstrap import compose_tool, prometheus_tools
from tests.unit.project.test_deploy import loaded

DEPLOY = ROOT / "deploy"
COMPOSE, PROMETHEUS = DEPLOY / "compose", DEPLOY / "prometheus"
WAYS = {"cpu": (), "gpu": ("gpu",), "otlp": ("otlp",), "gpu, otlp": ("gpu", "otlp")}
Service = dict[str, Any]


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


@pytest.fixture(params=list(WAYS.values()), ids=list(WAYS))
def services(request: pytest.FixtureRequest) -> dict[str, Service]:
    """Return the services of the stack with some files over it."""
    files = [word for name in ("stack", *request.param) for word in ("-f", str(COMPOSE / f"{name}.yaml"))]
    done = subprocess.run([compose_tool(), *files, "config"], capture_output=True, text=True, check=False, env={})
    assert (done.returncode, done.stderr) == (0, "")
    return dict(yaml.safe_load(done.stdout)["services"])


def mounted(service: Service) -> dict[str, Path]:
    """Return what lies in a container, by the path there."""
    return {each["target"]: Path(each["source"]) for each in service["volumes"] if each["type"] == "bind"}


def inside(service: Service, path: str) -> Path:
    """Return where a path in a container lies in this repository."""
    (found,) = [source / path[len(at) :].lstrip("/") for at, source in mounted(service).items() if path.startswith(at)]
    return found


def reached(service: Service) -> set[int]:
    """Return the ports of a service that this machine reaches."""
    return {each["target"] for each in service["ports"]}


def image(service: Service) -> str:
    if "image" in service:
        return str(service["image"])
    (found,) = re.findall(r"^FROM (\S+)$", service["build"]["dockerfile_inline"], re.MULTILINE)
    return str(found)


def listened(service: Service) -> set[int]:
    """Return where a service listens, by its settings."""
    settings = loaded(service["environment"]).settings.prometheus
    assert settings.host == "0.0.0.0"  # noqa: S104 - it is the container's own
    return {8000, *([settings.port] if settings.enabled else [])}


def receivers() -> dict[str, int]:
    """Return the ports of the collector by what it does there."""
    config = read(DEPLOY / "otel-collector" / "config.yaml")
    protocols = config["receivers"]["otlp"]["protocols"]
    found = {name: each["endpoint"] for name, each in protocols.items()}
    found["prometheus"] = config["exporters"]["prometheus"]["endpoint"]
    return {name: int(endpoint.rpartition(":")[2]) for name, endpoint in found.items()}


def test_everything_mounted_is_there(services: dict[str, Service]) -> None:
    for name, service in services.items():
        for source in mounted(service).values():
            assert source.exists(), f"{name}: Docker would make an empty folder of {source}"


def test_nobody_else_reaches_it(services: dict[str, Service]) -> None:
    assert {each["host_ip"] for service in services.values() for each in service["ports"]} == {"127.0.0.1"}


def test_images_are_pinned_and_the_charts(services: dict[str, Service]) -> None:
    for service in services.values():
        assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+", image(service))
    chart = containers(template(objects(SERVE))["spec"])["vllm"]["image"]
    assert image(services["vllm"]) in (chart, chart.replace("/vllm-openai:", "/vllm-openai-cpu:"))
    if "otel-collector" in services:
        found = objects(merged(ATTACH, {"otelCollector": {"enabled": True}}))
        assert image(services["otel-collector"]) == template(found, "otel-collector")["spec"]["containers"][0]["image"]


def test_vllm_is_built_with_this_checkout(services: dict[str, Service]) -> None:
    build = services["vllm"]["build"]
    assert Path(build["context"]) == ROOT
    (copied,) = re.findall(r"^COPY \. (\S+)$", build["dockerfile_inline"], re.MULTILINE)
    assert re.search(rf"^RUN uv pip install .*{copied}$", build["dockerfile_inline"], re.MULTILINE)
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert {"*", "!pyproject.toml", "!README.md", "!LICENSE", "!src"} <= set(ignored), "what a wheel is built from"


def test_prometheus_scrapes_what_listens(services: dict[str, Service]) -> None:
    prometheus = services["prometheus"]
    assert "--config.file=/etc/prometheus/prometheus.yml" in prometheus["command"]
    config = read(inside(prometheus, "/etc/prometheus/prometheus.yml"))
    (rules,) = config["rule_files"]
    assert len(list(inside(prometheus, "/etc/prometheus/rules").parent.glob(rules))) > 5
    wanted = {name for job in config["scrape_configs"] for name in job["file_sd_configs"][0]["files"]}
    files = list(inside(prometheus, "/etc/prometheus/targets").glob("*"))
    assert files
    assert {f"targets/{path.name}" for path in files} <= wanted
    for target in (target for path in files for group in read(path) for target in group["targets"]):
        host, _, port = target.partition(":")
        listens = {receivers()["prometheus"]} if host == "otel-collector" else listened(services[host])
        assert int(port) in listens, target


def test_grafana_finds_prometheus_and_dashboards(services: dict[str, Service]) -> None:
    grafana = services["grafana"]
    provisioning = inside(grafana, "/etc/grafana/provisioning")
    (source,) = read(provisioning / "datasources" / "prometheus.yaml")["datasources"]
    where = urlsplit(source["url"])
    assert where.port in reached(services[where.hostname or ""])
    assert source["isDefault"] is True
    interval = read(PROMETHEUS / "prometheus.yml")["global"]["scrape_interval"]
    assert source["jsonData"]["timeInterval"] == interval
    (provider,) = read(provisioning / "dashboards" / "vllm-vitals.yaml")["providers"]
    assert inside(grafana, provider["options"]["path"]) == ROOT / "dashboards"
    assert inside(grafana, grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]).is_file()
    assert {path.name for path in provisioning.iterdir()} == {"datasources", "dashboards"}


def test_vllm_pushes_where_the_collector_listens(services: dict[str, Service]) -> None:
    settings = loaded(services["vllm"]["environment"]).settings
    assert settings.slos
    if "otel-collector" not in services:
        assert settings.prometheus.enabled
        assert not settings.otlp.endpoint
        return
    assert not settings.prometheus.enabled, "each engine would be there twice"
    where = urlsplit(settings.otlp.endpoint or "")
    assert (where.hostname, where.port, where.path) == ("otel-collector", receivers()["http"], "/v1/metrics")
    collector = services["otel-collector"]
    assert {receivers()["http"], receivers()["grpc"]} == reached(collector)
    (word,) = collector["command"]
    assert inside(collector, word.removeprefix("--config=")) == DEPLOY / "otel-collector" / "config.yaml"
    assert settings.otlp.interval == float(read(PROMETHEUS / "prometheus.yml")["global"]["scrape_interval"][:-1])


@pytest.mark.parametrize("way", ["scrape", "otlp"])
def test_promtool_takes_the_configuration(way: str, tmp_path: Path) -> None:
    home = shutil.copytree(PROMETHEUS, tmp_path / "prometheus")
    shutil.copytree(home / "targets" / way, home / "targets", dirs_exist_ok=True)
    check = [str(prometheus_tools()[1]), "check", "config", str(home / "prometheus.yml")]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{len(list((PROMETHEUS / 'rules').iterdir()))} rule files found" in done.stdout


# What is the chart's too


def collector() -> list[Any]:
    return objects(merged(ATTACH, {"otelCollector": {"enabled": True}}))


def test_collector_is_configured_as_the_charts(request: pytest.FixtureRequest) -> None:
    made = the(collector(), "ConfigMap", "demo-vllm-vitals-otel")["data"]["config.yaml"]
    head = (
        "# An OpenTelemetry Collector, of a build with these parts (contrib has them), takes pushes and shows them to Prometheus.\n"
        "# Generated from the chart by `nox -s helm -- --rewrite -k collector`; edit that, not this file.\n"
    )
    file = DEPLOY / "otel-collector" / "config.yaml"
    if request.config.getoption("--rewrite"):
        file.write_text(f"{head}{made.rstrip()}\n")
    assert file.read_text() == f"{head}{made.rstrip()}\n", "stale: nox -s helm -- --rewrite -k collector"


def test_what_the_collector_shows_is_relabelled_as_by_the_chart() -> None:
    (endpoint,) = the(collector(), "PodMonitor", "demo-vllm-vitals-otel")["spec"]["podMetricsEndpoints"]
    (job,) = [
        each for each in read(PROMETHEUS / "prometheus.yml")["scrape_configs"] if each["job_name"] == "otel-collector"
    ]
    assert job["honor_labels"] is endpoint["honorLabels"] is True
    snake = {"sourceLabels": "source_labels", "targetLabel": "target_label"}
    wanted = [{snake.get(key, key): value for key, value in each.items()} for each in endpoint["metricRelabelings"]]
    made = job["metric_relabel_configs"]
    assert sorted(map(str, map(sorted, map(dict.items, made)))) == sorted(
        map(str, map(sorted, map(dict.items, wanted)))
    )


def test_the_page_tells_of_everything() -> None:
    page = (DEPLOY / "README.md").read_text()
    for path in sorted(DEPLOY.iterdir()):
        if path.name != "README.md":
            assert f"]({path.name}" in page, f"deploy/README.md does not name {path.name}"
    for name in re.findall(r"\]\(([^)#]+)", page):
        assert (DEPLOY / name).exists(), name
