"""What the metrics of the GPUs read from a sample, as it is kept and as it is scraped."""

import re
from pathlib import Path

import pytest

from tests.unit.nvml.readings import WHOLE, full
from vllm_vitals.aggregation.gpu_writers import GpuWriters
from vllm_vitals.catalog import CATALOG
from vllm_vitals.catalog import gpu as catalog
from vllm_vitals.catalog.gpu import GPU
from vllm_vitals.exporters.prometheus.text import Renderer
from vllm_vitals.records.gpu import FAILED, OK, REASONS, Gpu, Reading, Sample
from vllm_vitals.store.store import Store
from vllm_vitals.store.writers import writers

PART = Gpu("MIG-1", "H100 MIG", "NVIDIA", "GPU-a", "3")
LABELS = 'hw_id="GPU-a",hw_name="H100",hw_vendor="NVIDIA",model_name="m",engine="4"'
PART_LABELS = 'hw_id="MIG-1",hw_name="H100 MIG",hw_vendor="NVIDIA",hw_parent="GPU-a"'


class Kept:
    """A store that samples are written to as the aggregator does it."""

    def __init__(self) -> None:
        self.store = Store(GPU)
        self.gpu_writers = GpuWriters([writer for metric in GPU for writer in writers(self.store[metric], (), {})])

    def take(self, *readings: Reading) -> None:
        samples = [Sample(1000.0, 10.0, list(readings))]
        self.gpu_writers.begin(samples)
        for writer in self.gpu_writers.writers:
            writer.take(samples, 1000.0)

    def page(self) -> dict[str, float]:
        """Return what a scrape shows, by series."""
        text = b"".join(Renderer(self.store, openmetrics=False).render()).decode()
        lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
        return {series: float(value) for series, _, value in lines}


@pytest.fixture
def kept() -> Kept:
    return Kept()


TYPED = f'{LABELS},hw_type="gpu"'
EXPECTED = {
    f'hw_gpu_utilization_ratio{{{TYPED},hw_gpu_task="general"}}': 0.87,
    f"hw_gpu_memory_usage_bytes{{{TYPED}}}": 60,
    f"hw_gpu_memory_limit_bytes{{{TYPED}}}": 80,
    f"hw_gpu_memory_utilization_ratio{{{TYPED}}}": 0.75,
    f'hw_gpu_io_bytes_total{{{TYPED},network_io_direction="receive",link="pcie"}}': 7,
    f'hw_gpu_io_bytes_total{{{TYPED},network_io_direction="transmit",link="nvlink"}}': 9,
    f"hw_energy_joules_total{{{TYPED}}}": 400,
    f"hw_power_watts{{{TYPED}}}": 412.5,
    f'hw_temperature_celsius{{{LABELS},hw_temperature_sensor_location="gpu"}}': 66,
    f'hw_temperature_celsius{{{LABELS},hw_temperature_sensor_location="memory"}}': 78,
    f'hw_temperature_limit_celsius{{{LABELS},hw_temperature_sensor_location="gpu",hw_limit_type="throttled"}}': 87,
    f'hw_errors_total{{{TYPED},error_type="corrected"}}': 2,
    f'hw_errors_total{{{TYPED},error_type="uncorrected"}}': 0,
    f'hw_status{{{TYPED},hw_state="ok"}}': 1,
    f'hw_status{{{TYPED},hw_state="degraded"}}': 0,
    f'hw_status{{{TYPED},hw_state="failed"}}': 0,
    f'vllm_gpu_info{{{LABELS},index="3",pci_bus="00:1B",hw_serial_number="165",hw_driver_version="550.54",'
    'hw_firmware_version="96.00"}': 1,
    f"vllm_gpu_memory_activity_ratio{{{LABELS}}}": 0.4,
    f"vllm_gpu_process_memory_bytes{{{LABELS}}}": 50,
    f"vllm_gpu_power_limit_watts{{{LABELS}}}": 700,
    f'vllm_gpu_clock_hertz{{{LABELS},domain="sm"}}': 1.98e9,
    f'vllm_gpu_clock_hertz{{{LABELS},domain="memory"}}': 2.6e9,
    f'vllm_gpu_throttled_duration_seconds_total{{{LABELS},reason="sw_power_cap"}}': 1,
}  # fmt: skip


def test_whole_reading_is_on_the_page(kept):
    kept.take(full())
    assert kept.page() == EXPECTED


def test_a_missing_reading_has_no_series(kept):
    kept.take(Reading(PART, memory_usage=1, memory_limit=4))
    names = {series.partition("{")[0] for series in kept.page()}
    assert names == {
        "hw_gpu_memory_usage_bytes", "hw_gpu_memory_limit_bytes", "hw_gpu_memory_utilization_ratio", "hw_status",
        "vllm_gpu_info",
    }  # fmt: skip
    assert kept.page()[f'hw_gpu_memory_utilization_ratio{{{PART_LABELS},hw_type="gpu"}}'] == 0.25


def test_counters_add_up_and_gauges_are_the_latest(kept):
    kept.take(full())
    kept.take(full(energy=100.0, power=300.0, io={("pcie", "receive"): 1.0}, errors={}, throttled={}))
    page = kept.page()
    assert page[f"hw_energy_joules_total{{{TYPED}}}"] == 500
    assert page[f"hw_power_watts{{{TYPED}}}"] == 300
    assert page[f'hw_gpu_io_bytes_total{{{TYPED},network_io_direction="receive",link="pcie"}}'] == 8
    assert page[f'hw_errors_total{{{TYPED},error_type="corrected"}}'] == 2


def test_lost_device_keeps_its_counters_and_its_state_alone(kept):
    kept.take(full())
    kept.take(Reading(WHOLE, FAILED, "m", "4"))
    page = kept.page()
    assert {series.partition("{")[0] for series in page} == {
        "hw_status", "vllm_gpu_info", "hw_energy_joules_total", "hw_gpu_io_bytes_total", "hw_errors_total",
        "vllm_gpu_throttled_duration_seconds_total",
    }  # fmt: skip
    assert page[f'hw_status{{{TYPED},hw_state="failed"}}'] == 1
    assert page[f'hw_status{{{TYPED},hw_state="ok"}}'] == 0
    kept.take(full())
    assert kept.page()[f"hw_energy_joules_total{{{TYPED}}}"] == 800


def test_gauges_expire_and_counters_stay(kept):
    kept.take(full())
    kept.gpu_writers.expire(10.0 + 59.9, 60.0)
    kept.gpu_writers.expire(10.0 + 3600, 0.0)
    assert kept.page() == EXPECTED
    kept.gpu_writers.expire(10.0 + 60, 60.0)
    assert kept.page() == {series: value for series, value in EXPECTED.items() if "_total{" in series}
    kept.take(Reading(PART, power=1.0))
    assert "hw_power_watts" in {series.partition("{")[0] for series in kept.page()}


def test_devices_are_told_apart(kept):
    kept.take(full(), Reading(PART, OK, power=1.0), full())
    assert [value for series, value in kept.page().items() if series.startswith("hw_power_watts")] == [412.5, 1.0]


def test_impossible_readings_are_rejected_and_counted(kept):
    kept.take(full(utilization=1.01, power=4e9, memory_usage=2**60, energy=float("nan"), clocks={"sm": -1.0}))
    assert kept.store.rejects == {
        ("hw.gpu.utilization", "absurd"): 1, ("hw.power", "absurd"): 1, ("hw.gpu.memory.usage", "absurd"): 1,
        ("hw.gpu.memory.utilization", "absurd"): 1, ("hw.energy", "not_finite"): 1, ("vllm.gpu.clock", "negative"): 1,
    }  # fmt: skip


def test_devices_beyond_the_cap_share_one_label():
    kept = Kept()
    kept.take(*(Reading(Gpu(f"GPU-{number}", "H100", "NVIDIA"), power=100.0) for number in range(70)))
    power = {series: value for series, value in kept.page().items() if series.startswith("hw_power_watts")}
    assert len(power) == 65
    assert sum(power.values()) == 7000.0


def test_the_page_names_what_there_is():
    text = (Path(__file__).parents[3] / "docs" / "gpu.md").read_text(encoding="utf-8")
    names = {metric.prometheus for metric in CATALOG} | {metric.prometheus for metric in GPU}
    labels = {label for metric in GPU for label in metric.prometheus_labels}
    assert set(re.findall(r"\b(?:hw|vllm)_\w+\b", text)) - {"vllm_vitals"} <= names | labels | set(REASONS)
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({line.count("|") for line in table.splitlines()}) == 1


@pytest.mark.parametrize("metric", GPU, ids=lambda metric: metric.name)
def test_labels_follow_the_convention(metric):
    names = metric.labelnames
    assert names[:3] == ("hw.id", "hw.name", "hw.vendor")
    assert ("hw.type" in names) == (metric.name.startswith("hw.") and not metric.name.startswith("hw.temperature"))


def test_every_metric_is_in_the_group():
    declared = {each for each in vars(catalog).values() if getattr(each, "record", None) is Sample}
    assert declared == set(GPU)
