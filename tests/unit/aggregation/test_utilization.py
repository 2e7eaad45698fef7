"""How much of their peak GPUs are used to, against rates done by hand; nothing where the peak is not known."""

import logging
import math
from typing import Any

import pytest

from tests.unit.aggregation.test_cost import reading, sample
from tests.unit.builders import ENGINE, MODEL, Clock, Sight, facts, feed, step
from vllm_vitals.aggregation.aggregator import Aggregator
from vllm_vitals.config.settings import PerfSettings, Settings
from vllm_vitals.engine.utilization import Rate
from vllm_vitals.records.gpu import Gpu, Reading

FLOPS_LIMIT, TRAFFIC_LIMIT = "vllm_perf_flops_limit_per_second", "vllm_perf_memory_traffic_limit_bytes_per_second"
MFU, TRAFFIC = "vllm_perf_mfu_ratio", "vllm_perf_memory_traffic_utilization_ratio"
GAUGES = (FLOPS_LIMIT, TRAFFIC_LIMIT, MFU, TRAFFIC)


def measured(**fields: Any) -> Aggregator:
    """Return an aggregator whose engine works with a GPU's metrics on."""
    mine = Aggregator(Settings(perf=PerfSettings(**fields)))
    feed(mine, facts("0", "mfu", gpus=1, precisions=("bf16",)))
    return mine


def load(aggregator: Aggregator, since: float, seconds: int, flops: int, traffic: int) -> None:
    """Let the engine make ten steps per second from `since` on."""
    moved = {"read": traffic * 3 // 4, "write": traffic // 4}
    for tenth in range(1, seconds * 10 + 1):
        feed(aggregator, step(since + tenth / 10, running=1, flops=flops, memory_traffic=moved))
    aggregator.flush(since + seconds)


def seen(aggregator: Aggregator) -> list[float | None]:
    aggregator.refresh()
    see = Sight(aggregator)
    return [see(name, **ENGINE) for name in GAUGES]


def test_a_rate_is_averaged_over_half_a_minute() -> None:
    mine = Rate(0.0)
    mine.add(10.0, 600.0)
    assert mine.at(10.0) == pytest.approx(20.0)  # 600 in 30 s
    assert mine.at(40.0) == pytest.approx(20.0 / math.e)
    mine.add(40.0, 300.0)
    assert mine.at(40.0) == pytest.approx(20.0 / math.e + 10.0)
    assert mine.at(1e9) == 0.0


def test_utilization_is_the_rate_over_the_peak(clock: Clock) -> None:
    mine = measured(peak_flops=100e12, peak_bandwidth=2e12)
    load(mine, 100.0, 300, flops=int(4e12), traffic=int(0.12e12))  # ten a second: 40 TFLOP/s, 1.2 TB/s
    clock.now = 400.0
    flops_limit, traffic_limit, mfu, traffic = seen(mine)
    assert (flops_limit, traffic_limit) == (100e12, 2e12)
    assert mfu == pytest.approx(0.4, rel=0.01)
    assert traffic == pytest.approx(0.6, rel=0.01)
    # The counters give the same for any window.
    see = Sight(mine)
    assert (see("vllm_perf_flops_total", **ENGINE) or 0) / 300 / 100e12 == pytest.approx(0.4)


def test_idle_time_counts(clock: Clock) -> None:
    mine = measured(peak_flops=100e12, peak_bandwidth=2e12)
    load(mine, 100.0, 300, flops=int(4e12), traffic=int(0.12e12))
    feed(mine, step(400.1, running=0))
    mine.flush(430.0)
    clock.now = 430.0
    assert seen(mine)[2] == pytest.approx(0.4 / math.e, rel=0.01)
    mine.flush(2000.0)
    clock.now = 2000.0
    assert seen(mine)[2:] == pytest.approx([0.0, 0.0], abs=1e-12)


def test_a_known_gpu_needs_no_setting(clock: Clock) -> None:
    mine = measured()
    load(mine, 100.0, 60, flops=int(1e12), traffic=int(1e10))
    assert seen(mine) == [None] * 4
    feed(mine, sample(160.0, reading(0.0)))
    clock.now = 160.0
    assert seen(mine)[:2] == [989.5e12, 4800e9]


def test_a_setting_takes_precedence_over_a_known_peak(clock: Clock) -> None:
    mine = measured(peak_flops=500e12)
    feed(mine, sample(100.0, reading(0.0)))
    load(mine, 100.0, 1, flops=1, traffic=1)
    assert seen(mine)[:2] == [500e12, 4800e9]
    assert clock.now == 100.0


def test_an_engine_that_estimates_nothing_has_no_series(clock: Clock) -> None:
    mine = Aggregator(Settings(perf=PerfSettings(peak_flops=1e12, peak_bandwidth=1e12)))
    feed(mine, facts(gpus=1), sample(100.0, reading(0.0)), step(101.0, running=1))
    mine.flush(200.0)
    assert seen(mine) == [None] * 4
    assert clock.now == 100.0


@pytest.mark.parametrize(
    ("readings", "said"),
    [((Reading(Gpu("a", "NVIDIA H300"), model=MODEL, engine="0"),), "'NVIDIA H300'"),
     ((Reading(Gpu("a", "NVIDIA H200 MIG 1g.18gb", parent="b"), model=MODEL, engine="0"),), "'NVIDIA H200 MIG 1g.18gb, a part of a GPU'"),
     ((Reading(Gpu("a", "AMD Instinct MI300X", parent="b"), model=MODEL, engine="0"),), "'AMD Instinct MI300X, a part of a GPU'"),
     ((reading(0.0), Reading(Gpu("b", "NVIDIA L4"), model=MODEL, engine="0")), "GPUs of unknown name"),
     ((), "GPUs of unknown name")],
)  # fmt: skip
def test_unknown_peaks_are_logged_and_not_guessed(
    readings: tuple[Reading, ...], said: str, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    mine = measured()
    if readings:
        feed(mine, sample(101.0, *readings))
    with caplog.at_level(logging.WARNING, logger="vllm.vitals"):
        load(mine, 100.0, 20, flops=1, traffic=1)
        assert seen(mine) == [None] * 4
        assert not caplog.messages  # it may still say
        load(mine, 120.0, 20, flops=1, traffic=1)
        assert seen(mine) == seen(mine) == [None] * 4
    (line,) = caplog.messages
    assert said in line
    assert "perf.peak_flops (VITALS_PERF__PEAK_FLOPS) and perf.peak_bandwidth (VITALS_PERF__PEAK_BANDWIDTH)" in line
    assert clock.now == 100.0


def test_an_unknown_precision_is_logged(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    mine = Aggregator(Settings())
    feed(mine, facts("0", "mfu", gpus=1, precisions=()), sample(100.0, reading(0.0)))
    with caplog.at_level(logging.WARNING, logger="vllm.vitals"):
        load(mine, 100.0, 40, flops=1, traffic=1)
        assert seen(mine)[:3] == [None, 4800e9, None]
    (line,) = caplog.messages
    assert "an unknown precision" in line
    assert line.endswith("set perf.peak_flops (VITALS_PERF__PEAK_FLOPS)")
    assert clock.now == 100.0


def test_impossible_estimates_change_nothing(clock: Clock) -> None:
    mine = measured(peak_flops=1e12, peak_bandwidth=1e12)
    load(mine, 100.0, 1, flops=int(1e11), traffic=int(1e11))
    before = seen(mine)
    feed(mine, step(101.0, running=1, flops=-(10**15), memory_traffic={"read": -(10**15), "write": 0}))
    feed(mine, step(101.0, running=1, flops=math.inf, memory_traffic={"read": math.nan, "write": 0}))
    assert seen(mine) == before
    assert clock.now == 100.0
