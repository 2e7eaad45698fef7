"""A real Prometheus that scrapes the endpoint of a real vLLM."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.bootstrap import REPO, prometheus_tools
from tests.live.layouts import Shared
from tests.live.load import put_load
from tests.live.pages import eventually, settled
from tests.live.prometheus import Prometheus
from tests.live.server import VllmServer, fetch
from tests.parity import parse, value


@pytest.fixture(scope="module")
def server(roomy: Shared) -> VllmServer:
    return roomy.server


@pytest.fixture(scope="module")
def prometheus(server: VllmServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    running = Prometheus(tmp_path_factory.mktemp("prometheus"), server.vitals_port)
    try:
        assert eventually(lambda: running.query("up") == 1)
        yield running
    finally:
        running.process.terminate()
        running.process.wait(timeout=20)


def test_prometheus_stores_what_the_page_shows(server: VllmServer, prometheus: Prometheus) -> None:
    put_load(server, count=30, seed=3)
    _, ours = settled(server)
    names = ("vllm_tokens_generation_total", "vllm_request_duration_seconds_count", "vllm_requests_finished_total")
    for name in names:
        assert eventually(lambda name=name: prometheus.query(name) == value(ours, name)), name


def test_every_series_has_type_help_and_unit(server: VllmServer, prometheus: Prometheus) -> None:
    metadata = json.loads(fetch(f"http://127.0.0.1:{prometheus.port}/api/v1/metadata"))["data"]
    assert metadata["vllm_request_duration_seconds"] == [
        {"type": "histogram", "help": "Time from a request's arrival to its last token.", "unit": "seconds"}
    ]
    unknown = [name for name, (entry, *_) in metadata.items() if entry["type"] == "unknown" or not entry["help"]]
    assert unknown == []
    assert len(metadata) > 40
    assert parse(server.vitals_text())


def test_exemplars_arrive(prometheus: Prometheus) -> None:
    query = "vllm_request_duration_seconds_bucket"
    url = f"http://127.0.0.1:{prometheus.port}/api/v1/query_exemplars?query={query}&start=0&end=9999999999"
    (series, *_) = json.loads(fetch(url))["data"]
    assert series["exemplars"][0]["labels"]["request_id"].startswith("cmpl-")


def test_promtool_finds_nothing_wrong(server: VllmServer) -> None:
    _, promtool = prometheus_tools()
    checked = subprocess.run(
        [promtool, "check", "metrics"], input=server.vitals_text(), capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, "")


def test_the_configuration_of_the_local_stack_scrapes_and_evaluates(server: VllmServer, tmp_path: Path) -> None:
    """As it lies in `deploy/prometheus`, but for where vLLM is."""
    lies = REPO / "deploy" / "prometheus"
    shutil.copytree(lies / "rules", tmp_path / "rules")
    shutil.copytree(lies / "targets" / "scrape", tmp_path / "targets")
    for port, name in ((server.vitals_port, "vllm:9464"), (server.port, "vllm:8000")):
        (file,) = (file for file in (tmp_path / "targets").iterdir() if name in file.read_text())
        file.write_text(file.read_text().replace(name, f"localhost:{port}"))
    running = Prometheus(tmp_path, 0, (lies / "prometheus.yml").read_text().replace("{", "{{").replace("}", "}}"))
    try:
        for job in ("vllm", "vllm-native"):
            assert eventually(lambda job=job: running.query(f'up{{job="{job}", instance="vllm"}}') == 1, 30), job
        native = running.query('vllm:generation_tokens_total{instance="vllm"}')
        assert native > 0
        assert eventually(lambda: running.query('vllm_tokens_generation_total{instance="vllm"}') == native)
        assert eventually(lambda: running.query("model:vllm_engine_saturation_ratio:max") >= 0, 60)
        groups = json.loads(fetch(f"http://127.0.0.1:{running.port}/api/v1/rules"))["data"]["groups"]
        assert len(groups) > 5
        assert [rule for group in groups for rule in group["rules"] if rule.get("lastError")] == []
    finally:
        running.process.terminate()
        running.process.wait(timeout=20)
