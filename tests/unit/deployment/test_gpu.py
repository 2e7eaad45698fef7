"""The GPUs where they are needed: on the page of what holds the collector, beside the engine that works on them."""

import time
import urllib.request
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tests.unit.builders import Clock, Sight, collect, feed
from tests.unit.nvml import stub
from tests.unit.nvml.readings import full
from vllm_vitals.config.settings import Settings
from vllm_vitals.deployment.sidecar import StepSidecar, exporters
from vllm_vitals.exporters.prometheus.exporter import PrometheusExporter
from vllm_vitals.records.gpu import Sample
from vllm_vitals.records.placement import Placement
from vllm_vitals.vllm.engine_config import placement

A, B = "GPU-aaaaaaaa-0000", "GPU-bbbbbbbb-0000"


def config(**parallel: Any) -> SimpleNamespace:
    return SimpleNamespace(
        model_config=SimpleNamespace(served_model_name="m"), parallel_config=SimpleNamespace(**parallel)
    )


def scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as page:
        return page.read().decode()


def until_shown(port: int, *wanted: str) -> str:
    """Return the page once something is on it."""
    deadline = time.monotonic() + 20
    while not all(each in (page := scrape(port)) for each in wanted):
        assert time.monotonic() < deadline, page
        time.sleep(0.05)
    return page


@pytest.fixture
def two_gpus(tmp_path, monkeypatch):
    driver = stub.driver(tmp_path, monkeypatch)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    driver.plug(0)
    driver.plug(1)
    return driver


@pytest.mark.usefixtures("two_gpus")
def test_each_engine_has_its_gpu_on_the_page(make_runtime):
    prometheus = {"host": "127.0.0.1", "port": 0}
    host = make_runtime(gpu={"enabled": True, "interval": 0.1}, prometheus=prometheus)
    host.attach(config(world_size=1, data_parallel_size_local=2), [0, 1], object, "0.32.0")
    for _ in range(2):
        host.expose(
            "p",
            lambda: PrometheusExporter(
                host.aggregator, host.settings.prometheus, host.drainer.problem, CollectorRegistry
            ),
        )
    while not host.exporters["p"].ports:  # type: ignore[attr-defined]
        time.sleep(0.01)
    wanted = ["hw_energy"]
    for gpu, engine in ((A, "0"), (B, "1")):
        labels = f'hw_id="{gpu}",hw_name="NVIDIA H100 80GB HBM3",hw_vendor="NVIDIA",model_name="m",engine="{engine}"'
        wanted.append(f'hw_power_watts{{{labels},hw_type="gpu"}} 412.5')
        wanted.append(f"vllm_gpu_process_memory_bytes{{{labels}}} 5000.0")
    until_shown(host.exporters["p"].ports[0], *wanted)  # type: ignore[attr-defined]


def test_nobody_samples_when_it_is_off(make_runtime):
    host = make_runtime()
    host.expose("p", lambda: SimpleNamespace(start=lambda: None, stop=lambda: None))
    assert set(host.exporters) == {"p"}


@pytest.mark.usefixtures("two_gpus")
def test_sidecar_samples(tmp_path):
    settings = Settings.model_validate({"prometheus": {"port": 0, "host": "127.0.0.1"}, "gpu": {"devices": "1"}})
    sidecar = StepSidecar(settings, tmp_path / "s.sock")
    sidecar.start()
    try:
        exporter: Any = sidecar._server.exporters["prometheus"]
        while not exporter.ports:
            time.sleep(0.01)
        page = until_shown(exporter.ports[0], f'hw_status{{hw_id="{B}"')
        assert A not in page
    finally:
        sidecar.stop()


def test_sidecar_samples_for_somebody_or_not_at_all():
    off = {"prometheus": {"enabled": False}}
    assert exporters(Settings.model_validate(off), collect(), str) == {}
    assert set(exporters(Settings(), collect(), str)) == {"prometheus", "gpu"}
    assert set(exporters(Settings.model_validate({"gpu": {"enabled": False}}), collect(), str)) == {"prometheus"}


def test_gauges_go_when_nobody_samples_any_more(clock: Clock):
    aggregator = collect()
    feed(aggregator, Sample(1.0, clock.now, [full()]))
    sight = Sight(aggregator)
    names = {"hw_power_watts", "hw_energy_joules_total"}
    assert names == {name for name in names if sight.labels(name)}
    clock.now += 59
    assert sight.labels("hw_power_watts")
    clock.now += 2
    assert not sight.labels("hw_power_watts")
    assert sight.labels("hw_energy_joules_total")
    feed(aggregator, Sample(1.0, clock.now, [full()]))
    assert sight.labels("hw_power_watts")


PLACEMENTS = [
    ({}, ["0"], Placement("m", ("0",), 1)),
    ({"world_size": 4}, ["0"], Placement("m", ("0",), 4)),
    ({"world_size": 2, "data_parallel_size_local": 2}, ["0", "1", "2", "3"], Placement("m", ("0", "1"), 2)),
    ({"data_parallel_size_local": 0}, ["0", "1"], Placement("m", (), 1)),
    (
        {"world_size": 2, "data_parallel_size_local": 1, "data_parallel_rank_local": 3},
        ["5"],
        Placement("m", ("5",), 2, 3),
    ),
    (
        {"world_size": "x", "data_parallel_size_local": None, "data_parallel_rank_local": -1},
        ["0"],
        Placement("m", ("0",), 1),
    ),
]


@pytest.mark.parametrize(("parallel", "engines", "expected"), PLACEMENTS)
def test_placement_is_read_from_vllms_configuration(parallel, engines, expected):
    assert placement(config(**parallel), engines) == expected
