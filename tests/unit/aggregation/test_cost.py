"""What engines take of GPU time, energy and money, against sums done by hand."""

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tests.unit.builders import ENGINE, EPOCH, MODEL, Clock, Sight, facts, feed, step
from tests.unit.engine.test_limiter import LIMITERS
from vllm_vitals.aggregation.aggregator import Aggregator
from vllm_vitals.catalog.cost import STATES
from vllm_vitals.config.load import SettingsError, load
from vllm_vitals.config.settings import PriceSettings, Settings
from vllm_vitals.gpu.peaks import PEAKS
from vllm_vitals.records.gpu import FAILED, Gpu, Reading, Sample
from vllm_vitals.records.step import Finished, Gone, Sleep

GPU_TIME, ENERGY = "vllm_engine_gpu_time_seconds_total", "vllm_engine_energy_joules_total"
COST, SAVED, PRICE = "vllm_engine_cost_total", "vllm_prefix_cache_saved_cost_total", "vllm_gpu_price_per_hour"
EURO = {"currency": "EUR"}
PAGE = Path(__file__).parents[3] / "docs" / "cost.md"


def priced(per_gpu_hour: float = 3.6, currency: str = "EUR") -> Aggregator:
    """Return an aggregator of GPUs at a tenth of a cent per second."""
    return Aggregator(Settings(price=PriceSettings(per_gpu_hour=per_gpu_hour, currency=currency)))


def by_state(aggregator: Aggregator, name: str, engine: str = "0", **labels: str) -> dict[str, float | None]:
    see = Sight(aggregator)
    return {state: see.of_engine(name, engine, state=state, **labels) for state in STATES}


def work(aggregator: Aggregator, engine: str = "0") -> None:
    """Let an engine be idle for 1 s, busy for 4 s, asleep for 3 s and idle for 2 s, from 100 s on."""
    feed(aggregator, step(101.0, engine=engine, running=1), step(103.0, engine=engine, running=2, waiting=3))
    feed(aggregator, step(105.0, engine=engine, running=0))
    feed(aggregator, Sleep(MODEL, engine, "discard_all", 105.0), Sleep(MODEL, engine, "awake", 108.0))
    aggregator.flush(110.0)


def sample(clock: float, *readings: Reading) -> Sample:
    return Sample(EPOCH + clock, clock, list(readings))


def reading(joules: float | None, number: int = 0, engine: str = "0", **said: Any) -> Reading:
    model = MODEL if engine else ""
    return Reading(Gpu(f"GPU-{number}", "NVIDIA H200", "NVIDIA"), model=model, engine=engine, energy=joules, **said)


# GPU time


def test_all_time_counts_once_for_each_gpu(clock: Clock) -> None:
    mine = Aggregator(Settings())
    feed(mine, facts(gpus=4))
    assert by_state(mine, GPU_TIME) == {"busy": 0, "idle": 0, "asleep": 0}
    work(mine)
    assert by_state(mine, GPU_TIME) == {"busy": 16.0, "idle": 12.0, "asleep": 12.0}
    assert Sight(mine)("vllm_engine_gpus", **ENGINE) == 4
    limited = [Sight(mine)("vllm_engine_limited_duration_seconds_total", **ENGINE, limiter=name) for name in LIMITERS]
    assert sum(map(float, filter(None, limited))) == 10.0
    assert clock.now == 100.0


def test_each_engine_has_its_own(clock: Clock) -> None:
    mine = Aggregator(Settings())
    feed(mine, facts("0", gpus=1), facts("1", gpus=2))
    work(mine, "1")
    assert by_state(mine, GPU_TIME, "0") == {"busy": 0, "idle": 10.0, "asleep": 0}
    assert by_state(mine, GPU_TIME, "1") == {"busy": 8.0, "idle": 6.0, "asleep": 6.0}
    assert clock.now == 100.0


def test_unknown_gpus_have_no_time(clock: Clock) -> None:
    mine = priced()
    feed(mine, facts())
    work(mine)
    assert by_state(mine, GPU_TIME) == {"busy": 0, "idle": 0, "asleep": 0}
    assert by_state(mine, COST, **EURO) == dict.fromkeys(STATES)
    assert Sight(mine)("vllm_engine_gpus", **ENGINE) is None
    assert clock.now == 100.0


# Money


def test_time_costs_what_the_price_says(clock: Clock) -> None:
    mine = priced()
    feed(mine, facts(gpus=4))
    assert by_state(mine, COST, **EURO) == {"busy": 0, "idle": 0, "asleep": 0}
    work(mine)
    assert by_state(mine, COST, **EURO) == pytest.approx({"busy": 0.016, "idle": 0.012, "asleep": 0.012})
    assert Sight(mine)(PRICE, **EURO) == 3.6
    assert clock.now == 100.0


def test_without_a_price_there_is_no_money(clock: Clock) -> None:
    mine = Aggregator(Settings())
    feed(mine, facts(gpus=4))
    work(mine)
    cached = Finished("stop", duration=2.0, prefill=1.0, input_tokens=150, cached_tokens=50, output_tokens=1)
    feed(mine, step(111.0, finished=(cached,)))
    mine.refresh()
    assert [Sight(mine).labels(name) for name in (COST, SAVED, PRICE)] == [[], [], []]
    assert clock.now == 100.0


def test_cached_tokens_save_what_their_prefill_would_have_cost(clock: Clock) -> None:
    mine = priced()
    feed(mine, facts(gpus=2))
    assert Sight(mine)(SAVED, **ENGINE, **EURO) == 0
    # 100 tokens in 1 s, so the 50 cached ones spared half a second of two GPUs
    cached = Finished("stop", duration=2.0, prefill=1.0, input_tokens=150, cached_tokens=50, output_tokens=1)
    feed(mine, step(101.0, running=0, finished=(cached,)))
    mine.refresh()
    assert Sight(mine)("vllm_prefix_cache_saved_prefill_seconds_total", **ENGINE) == pytest.approx(0.5)
    assert Sight(mine)(SAVED, **ENGINE, **EURO) == pytest.approx(0.5 * 2 * 0.001)
    assert clock.now == 100.0


def test_costs_per_token_follow_for_any_window(clock: Clock) -> None:
    """The ratios of docs/cost.md: per million tokens, per million good ones, of bad ones, idle share."""
    slos = [{"name": "fast", "target": 0.9, "e2e": 5.0}]
    mine = Aggregator(Settings.model_validate({"price": {"per_gpu_hour": 3.6}, "slos": slos}))
    feed(mine, facts(gpus=2), step(100.0, running=4))
    ended = [Finished("stop", duration=seconds, decode=0.1, output_tokens=100) for seconds in (1.0, 2.0, 3.0, 9.0)]
    feed(mine, step(108.0, running=0, generation_tokens=400, finished=tuple(ended)))
    mine.flush(110.0)
    mine.refresh()
    see = Sight(mine)
    cost = sum(filter(None, by_state(mine, COST, currency="USD").values()))
    tokens = see("vllm_tokens_generation_total", **ENGINE) or 0
    good, bad = (see("vllm_slo_tokens_total", **ENGINE, slo="fast", outcome=each) or 0 for each in ("good", "bad"))
    gpu_time = by_state(mine, GPU_TIME)
    assert cost == pytest.approx(10 * 2 * 0.001)
    assert cost / tokens * 1e6 == pytest.approx(50.0)  # 2 cents for 400 tokens
    assert cost / good * 1e6 == pytest.approx(200 / 3)  # for 300
    assert cost * bad / (good + bad) == pytest.approx(0.005)
    assert (gpu_time["idle"] or 0) / 20 == pytest.approx(0.2)
    assert clock.now == 100.0


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [("PRICE__PER_GPU_HOUR", "0", "greater than 0"), ("PRICE__PER_GPU_HOUR", "nan", "less than or equal to 1000000"),
     ("PRICE__PER_GPU_HOUR", "inf", "less than or equal to 1000000"), ("PRICE__PER_GPU_HOUR", "$2", "valid number"),
     ("PRICE__CURRENCY", "dollars", "[A-Z]{3}"), ("PERF__PEAK_FLOPS", "989", "greater than or equal to 1000000000"),
     ("PERF__PEAK_BANDWIDTH", "3.35", "greater than or equal to 1000000000")],
)  # fmt: skip
def test_invalid_prices_and_peaks_are_refused(variable: str, value: str, said: str) -> None:
    with pytest.raises(SettingsError, match=variable.lower().replace("__", ".")) as caught:
        load({f"VITALS_{variable}": value})
    assert said in str(caught.value)
    assert f"VITALS_{variable}='{value}'" in str(caught.value)


def test_currencies_are_codes() -> None:
    assert PriceSettings().currency == "USD"
    with pytest.raises(ValidationError):
        PriceSettings(currency="eur")


# Energy


def test_the_energy_of_an_engines_gpus_is_divided_by_its_state(clock: Clock) -> None:
    mine = Aggregator(Settings())
    feed(mine, facts(gpus=2))
    feed(mine, sample(100.0, reading(0.0), reading(0.0, 1)))
    feed(mine, sample(101.0, reading(50.0), reading(70.0, 1)))  # idle at 120 W
    feed(mine, step(101.0, running=1), sample(102.0, reading(600.0), reading(620.0, 1)))
    feed(mine, sample(103.0, reading(300.0), reading(320.0, 1)), step(102.5, running=0))  # half of it idle: 60 J
    feed(mine, sample(104.0, reading(55.0), reading(None, 1, state=FAILED)))
    mine.flush(103.5)
    assert by_state(mine, ENERGY) == {"busy": 1220.0 + 560.0, "idle": 120.0 + 60.0, "asleep": 0}
    mine.flush(104.0)
    assert by_state(mine, ENERGY) == {"busy": 1780.0, "idle": 180.0 + 55.0, "asleep": 0}
    assert clock.now == 100.0


def test_energy_asleep_is_told_apart(clock: Clock) -> None:
    mine = Aggregator(Settings())
    feed(mine, facts(gpus=1), Sleep(MODEL, "0", "weights_offloaded", 100.0))
    feed(mine, sample(101.0, reading(30.0)), sample(102.0, reading(40.0)))
    mine.flush(102.0)
    assert by_state(mine, ENERGY) == {"busy": 0, "idle": 0, "asleep": 70.0}
    assert clock.now == 100.0


def test_each_engine_has_the_energy_of_its_own_gpus(clock: Clock) -> None:
    mine = Aggregator(Settings())
    feed(mine, facts("0", gpus=1), facts("1", gpus=1))
    feed(mine, sample(101.0, reading(10.0), reading(20.0, 1, "1"), reading(40.0, 2, ""), reading(80.0, 3, "9")))
    mine.flush(101.0)
    assert by_state(mine, ENERGY, "0") == {"busy": 0, "idle": 10.0, "asleep": 0}
    assert by_state(mine, ENERGY, "1") == {"busy": 0, "idle": 20.0, "asleep": 0}
    assert {labels["engine"] for labels in Sight(mine).labels(ENERGY)} == {"0", "1"}
    assert clock.now == 100.0


@pytest.mark.parametrize(
    ("engines", "gpus", "parent", "expected"),
    [(1, 2, "", 30.0), (1, 1, "", None), (1, 4, "", None), (2, 2, "", None), (1, 2, "GPU-a", None)],
)
def test_gpus_without_an_owner_belong_to_the_only_engine_with_as_many(
    engines: int, gpus: int, parent: str, expected: float | None, clock: Clock
) -> None:
    mine = Aggregator(Settings())
    feed(mine, *(facts(str(engine), gpus=gpus) for engine in range(engines)))
    other = Reading(Gpu("GPU-1", parent=parent), energy=20.0)
    feed(mine, sample(101.0, reading(10.0, engine=""), other))
    mine.flush(101.0)
    assert by_state(mine, ENERGY)["idle"] == expected
    assert clock.now == 100.0


def test_gpus_without_energy_readings_make_no_series(clock: Clock) -> None:
    mine = Aggregator(Settings())
    feed(mine, facts(gpus=1), sample(101.0, reading(None)))
    mine.flush(101.0)
    assert Sight(mine).labels(ENERGY) == []
    assert clock.now == 100.0


def test_an_engine_that_is_gone_costs_nothing_more(clock: Clock) -> None:
    mine = priced()
    feed(mine, facts(gpus=1))
    work(mine)
    before = by_state(mine, COST, **EURO)
    feed(mine, Gone(MODEL, "0"), sample(120.0, reading(100.0)))
    mine.flush(130.0)
    assert by_state(mine, COST, **EURO) == before
    assert Sight(mine).labels(ENERGY) == []
    assert clock.now == 100.0


# A year


def test_a_year_adds_up_and_nothing_grows(clock: Clock) -> None:
    """An hour of work and an hour of rest in turn: 700 W and 100 W for each of two GPUs, sampled every half hour."""
    mine, hour, spacing, year = priced(), 3600, 1800, 365 * 24 * 3600
    feed(mine, facts(gpus=2), step(100.0, running=1))
    series = 0
    for now in range(spacing, year + 1, spacing):
        busy = (now - 1) // hour % 2 == 0
        each = (700.0 if busy else 100.0) * spacing
        mine.add([sample(100.0 + now, reading(each), reading(each, 1))])
        mine.flush(100.0 + now)
        if now % hour == 0:
            mine.add([step(100.0 + now, running=0 if busy else 1)])
        if now == 24 * hour:
            mine.refresh()
            series = sum(len(family.cells) for family in mine.store)
    half = year / 2
    assert by_state(mine, GPU_TIME) == pytest.approx({"busy": 2 * half, "idle": 2 * half, "asleep": 0}, rel=1e-9)
    assert by_state(mine, ENERGY) == pytest.approx({"busy": 1400 * half, "idle": 200 * half, "asleep": 0}, rel=1e-9)
    assert by_state(mine, COST, **EURO)["busy"] == pytest.approx(2 * half * 0.001, rel=1e-9)
    assert sum(len(family.cells) for family in mine.store) == series
    assert clock.now == 100.0


# docs/cost.md


def test_the_page_lists_the_gpus_whose_peaks_are_known() -> None:
    listed = PAGE.read_text(encoding="utf-8").partition("### The peaks")[2]
    for name in PEAKS:
        part = re.search(r"(?:GB|[ABHLTV]|MI)\d+\w*|RTX (?:PRO )?\d+(?: Ada)?", name)
        assert part, name
        assert part[0].removesuffix("S") in listed, name
