"""Our pages say what `prometheus_client` says of the same store, and change when it does."""

import math
import re
import shutil
import subprocess
from array import array
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest
from prometheus_client.core import Metric as Parsed
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from tests.checkpoints import at_checkpoints
from tests.unit.builders import ENGINE, EPOCH, MODEL, Clock, Sight, collect, examples, facts, feed, finished, page, step
from tests.unit.nvml.readings import full
from vllm_vitals._util.labels import label
from vllm_vitals.aggregation.aggregator import Aggregator
from vllm_vitals.catalog import CATALOG, Counter, Gauge, Histogram
from vllm_vitals.catalog.connectors import CONNECTORS
from vllm_vitals.exporters.prometheus.text import Renderer
from vllm_vitals.records.gpu import Sample
from vllm_vitals.records.step import CacheUse, Evictions, Finished, Health, Rejection, Reported, Sleep, Speculation

AWKWARD = 'a"b\\c\nd,e=f{g}h # i 你好 \N{PILE OF POO}'
EVERY_FEATURE = {metric.needs for metric in CATALOG} - {""}
REPORTED = tuple(
    Reported(metric.name, tuple(label.name for label in metric.labels), array("d", [0.25, 0.5]))
    for metric in CONNECTORS
)

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]
both_formats = pytest.mark.parametrize("openmetrics", [False, True], ids=["text", "openmetrics"])


def request(**fields: Any) -> Finished:
    whole = {"duration": 10.1, "queue": 1.3, "prefill": 2.0, "decode": 6.0, "inference": 8.0, "input_tokens": 7,
             "time_per_output_token": 0.2, "output_tokens": 31, "cached_tokens": 3, "max_tokens": 64, "preemptions": 1,
             "time": EPOCH + 0.25, "request_id": "r-1"}  # fmt: skip
    return Finished(**{"reason": "stop", **whole, **fields})


def full_step(clock: float, engine: str) -> Any:
    latencies = array("d", [0.001, 0.02, 1 / 3, 1e-7, 12345.678])
    return step(
        clock, engine=engine, running=3, waiting=2, deferred=1, kv_cache_usage=1 / 3, prefix_cache=CacheUse(100, 40),
        external_prefix_cache=CacheUse(60, 6), cached_by_source={"device": 40, "ssd": 6}, kv_fetch={"in_progress": 1},
        lora_running={"sql": 2, AWKWARD: 1}, lora_waiting={"sql": 1}, speculation=Speculation(3, 9, (2, 1, 1)),
        evictions=Evictions(latencies, latencies, latencies), graph_tokens={"padded": 8, "unpadded": 7},
        flops=2**60 + 1, memory_traffic={"read": 10**15, "write": 3}, duration=0.0125, iterated=True,
        scheduled_tokens={"prefill": 5, "decode": 3}, prompt_tokens={"local_compute": 5, "local_cache_hit": 2},
        computed_tokens=5, generation_tokens=3, preempted=1, corrupted=1, watermarks={"watermarked": 1},
        first_token_latencies=latencies, inter_token_latencies=latencies, multimodal_cache=CacheUse(3, 1),
        connectors=REPORTED, unknown_connectors=("AConnector",), sequences_asked=array("d", [1, 4]), longest_outputs=array("d", [31]),
        finished=[request(), request(reason="error", duration=2e4), request(reason=AWKWARD, decode=99.0)],
    )  # fmt: skip


def full_collector(**values: Any) -> Aggregator:
    """Return a collector that has something to show of every metric."""
    known = {"kv_cache_tokens": 16384, "max_num_seqs": 8, "max_num_batched_tokens": 2048, "startup": 33.5,
             "info": {"dtype": "bfloat16", "vllm_version": "0.32.0"}, "gpus": 1}  # fmt: skip
    slos = [{"name": "all", "target": 0.99, "ttft": 1, "tpot": 1, "e2e": 1}]
    values = {
        "slos": slos,
        "price": {"per_gpu_hour": 2.5},
        "perf": {"peak_flops": 1e12, "peak_bandwidth": 1e12},
        **values,
    }
    aggregator = collect(*(facts(engine, *EVERY_FEATURE, **known) for engine in ("0", "1")), **values)
    for second in range(20):  # the KV cache fills
        for engine in ("0", "1"):
            feed(aggregator, step(80.0 + second, engine=engine, running=1, kv_cache_usage=0.01 * second))
    aggregator.flush(99.5)
    for clock in (100.0, 100.0125, 100.5):
        for engine in ("0", "1"):
            feed(aggregator, full_step(clock, engine))
    aggregator.flush(100.5)
    rare = (Sleep(MODEL, "0", "paused"), Rejection(MODEL, "full"), Health(2, 1e-6, {"hook": 1}), step(kv_cache_usage=7))
    for record in rare:
        feed(aggregator, record)
    feed(aggregator, Sample(EPOCH + 100, 100.0, [full(), full(engine="0")]))
    for duration in (0.001, 3.0, None):
        aggregator.export("prometheus", duration, refused=1)
    aggregator.refresh()
    return aggregator


def families(text: str, *, openmetrics: bool) -> list[Parsed]:
    return list(parse_openmetrics(text) if openmetrics else parse_text(text))


def samples(parsed: Iterable[Parsed]) -> Samples:
    """Return every sample; an empty label is the same as none."""
    found: Samples = {}
    for family in parsed:
        for sample in family.samples:
            key = sample.name, frozenset((name, value) for name, value in sample.labels.items() if value)
            assert key not in found, "a sample is on the page twice"
            found[key] = sample.value
    return found


def heads(parsed: Iterable[Parsed]) -> list[tuple[str, str, str, str]]:
    """Return what the page says of each family that has samples."""
    return [(each.name, each.type, each.documentation, each.unit) for each in parsed if each.samples]


def of_prometheus_client(aggregator: Aggregator, *, openmetrics: bool) -> str:
    registry = Sight(aggregator).registry
    made: bytes = generate_openmetrics(registry) if openmetrics else generate_latest(registry)
    return made.decode()


def test_the_full_collector_shows_every_metric(clock: Clock) -> None:
    shown = {family.metric for family in full_collector().store if family.cells}
    assert [metric.name for metric in CATALOG if metric not in shown] == []
    assert {type(metric) for metric in shown} == {Counter, Gauge, Histogram}
    assert clock.now == 100.0


@both_formats
def test_the_page_says_what_prometheus_client_says(clock: Clock, *, openmetrics: bool) -> None:
    aggregator = full_collector()
    ours = families(page(aggregator, openmetrics=openmetrics), openmetrics=openmetrics)
    theirs = families(of_prometheus_client(aggregator, openmetrics=openmetrics), openmetrics=openmetrics)
    assert samples(ours) == samples(theirs)
    assert heads(ours) == heads(theirs)
    assert len(samples(ours)) > 500
    assert clock.now == 100.0


@both_formats
def test_the_page_of_an_empty_collector_is_legal(*, openmetrics: bool) -> None:
    shown = families(page(collect(), openmetrics=openmetrics), openmetrics=openmetrics)
    assert "vitals_info" in {family.name for family in shown}


@both_formats
def test_each_family_has_one_head_and_its_samples_together(*, openmetrics: bool) -> None:
    text = page(full_collector(), openmetrics=openmetrics)
    for keyword in ("HELP", "TYPE"):
        names = re.findall(rf"^# {keyword} (\S+)", text, re.MULTILINE)
        assert len(names) == len(set(names))
    assert text.endswith("# EOF\n") == openmetrics
    assert text.count("# EOF") == openmetrics


@both_formats
def test_an_awkward_label_survives(*, openmetrics: bool) -> None:
    shown = samples(families(page(full_collector(), openmetrics=openmetrics), openmetrics=openmetrics))
    labels = {**ENGINE, "adapter": AWKWARD, "state": "running"}
    assert shown["vllm_lora_requests", frozenset(labels.items())] == 1


def test_labels_are_escaped_as_the_format_says() -> None:
    text = page(collect(step(running=1, lora_running={'q"b\\n\nü': 1})))
    assert 'vllm_lora_requests{model_name="m",engine="0",adapter="q\\"b\\\\n\\nü",state="running"} 1.0\n' in text


@given(st.dictionaries(st.text(min_size=1, max_size=20), st.integers(1, 9), max_size=4))
@examples(60)
def test_any_text_is_a_label_that_parses_back(adapters: dict[str, int]) -> None:
    expected: dict[str, float] = {}
    for adapter, running in adapters.items():
        expected[label(adapter)] = expected.get(label(adapter), 0.0) + running
    aggregator = collect(step(running=1, lora_running=adapters))
    for openmetrics in (False, True):
        shown = samples(families(page(aggregator, openmetrics=openmetrics), openmetrics=openmetrics))
        found = {
            dict(labels)["adapter"]: value for (name, labels), value in shown.items() if name == "vllm_lora_requests"
        }
        assert found == expected


@both_formats
@pytest.mark.parametrize("name", ["lone \ud800 surrogate", "nul \0", "carriage \r return", "\x85\u2028"])
def test_text_that_is_not_quite_unicode_does_not_cost_the_page(name: str, *, openmetrics: bool) -> None:
    aggregator = collect(step(running=1, generation_tokens=3, lora_running={name: 2}))
    shown = samples(families(page(aggregator, openmetrics=openmetrics), openmetrics=openmetrics))
    assert shown["vllm_tokens_generation_total", frozenset(ENGINE.items())] == 3
    assert [value for (sample, _), value in shown.items() if sample == "vllm_lora_requests"] == [2]


@both_formats
def test_an_empty_label_is_left_out(*, openmetrics: bool) -> None:
    text = page(full_collector(), openmetrics=openmetrics)
    assert '=""' not in text
    assert 'error_type="error"' in text
    assert re.search(
        r'^gen_ai_server_request_duration_seconds_count\{[^}]*gen_ai_request_model="m"\} ', text, re.MULTILINE
    )


# --- Exemplars


def exemplars(text: str) -> dict[str, tuple[str, float, float]]:
    """Return the exemplars of the request durations, by bucket."""
    (family,) = [each for each in parse_openmetrics(text) if each.name == "vllm_request_duration_seconds"]
    return {
        sample.labels["le"]: (
            sample.exemplar.labels["request_id"],
            sample.exemplar.value,
            float(sample.exemplar.timestamp),
        )
        for sample in family.samples
        if sample.exemplar
    }


def with_exemplars() -> Aggregator:
    requests = (("a", 0.5), ("b", 0.4), ("c", 9.0), ("d é", 1e5), ("e", 9e9), ("", 55.0))
    ended = (Finished("stop", time=EPOCH + 0.25, duration=value, request_id=name) for name, value in requests)
    return collect(finished(*ended), exemplars=True)


def test_exemplars_are_beside_the_bucket_of_their_value_in_openmetrics() -> None:
    assert exemplars(page(with_exemplars(), openmetrics=True)) == {
        "0.5": ("b", 0.4, EPOCH + 0.25), "10.0": ("c", 9.0, EPOCH + 0.25), "+Inf": ("d é", 1e5, EPOCH + 0.25),
    }  # fmt: skip


def test_an_id_that_some_parser_does_not_take_costs_its_own_exemplar_and_no_other() -> None:
    for odd in ("}", "{", 'q"b', "b\\n", "\n", "nul\0", "\ud800", "\u2028", "\u202e"):
        ended = [request(request_id="fair"), request(request_id=odd), request(request_id=odd, duration=0.4)]
        text = page(collect(finished(*ended), exemplars=True), openmetrics=True)
        assert set(exemplars(text).values()) == {("fair", 10.1, EPOCH + 0.25)}


def test_the_text_page_has_no_exemplars() -> None:
    text = page(with_exemplars())
    assert " # " not in re.sub(r"^#.*$", "", text, flags=re.MULTILINE)
    assert "request_id" not in text


def test_long_request_ids_make_legal_exemplars() -> None:
    text = page(collect(finished(request(request_id="é" * 500)), exemplars=True), openmetrics=True)
    ids = {each for each, *_ in exemplars(text).values()}
    assert ids == {"é" * (128 - len("request_id"))}


@pytest.mark.parametrize("name", ["\ud800", "\0", "\r\n"])
def test_a_request_id_that_is_not_quite_unicode_does_not_cost_the_page(name: str) -> None:
    aggregator = collect(finished(request(request_id=name)), exemplars=True)
    for openmetrics in (False, True):
        shown = samples(families(page(aggregator, openmetrics=openmetrics), openmetrics=openmetrics))
        assert shown["vllm_request_duration_seconds_count", frozenset(ENGINE.items())] == 1


# --- Texts that are kept


@both_formats
def test_a_kept_page_follows_every_change(clock: Clock, *, openmetrics: bool) -> None:
    aggregator = full_collector(exemplars=True)
    renderer = Renderer(aggregator.store, openmetrics=openmetrics)
    for round_ in range(4):
        clock.now += 0.25
        kept = page(aggregator, openmetrics=openmetrics, renderer=renderer)
        assert kept == page(aggregator, openmetrics=openmetrics)
        feed(aggregator, full_step(101.0 + round_, str(round_ % 2)))
        feed(aggregator, finished(request(request_id=f"r{round_}", duration=0.1 * round_)))
        aggregator.export("prometheus", 0.5)


def test_a_page_without_changes_is_the_same(clock: Clock) -> None:
    aggregator = full_collector()
    renderer = Renderer(aggregator.store, openmetrics=False)
    assert page(aggregator, renderer=renderer) == page(aggregator, renderer=renderer)
    assert clock.now == 100.0


@both_formats
def test_series_that_are_no_more_vanish_and_are_forgotten(*, openmetrics: bool) -> None:
    aggregator = collect(step(running=1, lora_running={"old": 1}))
    renderer = Renderer(aggregator.store, openmetrics=openmetrics)
    assert 'adapter="old"' in page(aggregator, openmetrics=openmetrics, renderer=renderer)
    feed(aggregator, step(running=1, lora_running={"new": 1}))
    text = page(aggregator, openmetrics=openmetrics, renderer=renderer)
    assert 'adapter="old"' not in text
    assert 'adapter="new"' in text
    cells = sum(len(family.cells) for family in aggregator.store)
    assert len(renderer._kept) == len(renderer._prefixes) == cells


def test_a_series_that_comes_back_shows_its_new_value() -> None:
    aggregator = collect(step(running=1, lora_running={"a": 7}))
    renderer = Renderer(aggregator.store, openmetrics=False)
    for adapters, shown in (({"a": 7}, " 7.0\n"), ({}, ""), ({"a": 7}, " 7.0\n"), ({"a": 8}, " 8.0\n")):
        feed(aggregator, step(running=1, lora_running=adapters))
        text = page(aggregator, renderer=renderer)
        assert ('adapter="a"' in text) == bool(shown)
        assert shown in text


def test_a_series_that_went_and_came_between_two_scrapes_shows_its_new_value() -> None:
    aggregator = collect(step(running=1, lora_running={"a": 7}))
    renderer = Renderer(aggregator.store, openmetrics=False)
    page(aggregator, renderer=renderer)
    feed(aggregator, step(running=1))
    feed(aggregator, step(running=1, lora_running={"a": 9}))
    assert 'adapter="a",state="running"} 9.0\n' in page(aggregator, renderer=renderer)


def test_a_family_without_series_has_no_head() -> None:
    aggregator = collect(step(running=1, lora_running={"a": 1}), step(running=1))
    assert "vllm_lora_requests" not in page(aggregator)


def test_the_interpreter_is_given_up_between_pieces_and_text_is_made_without_the_lock() -> None:
    aggregator = full_collector()
    held: list[bool] = []
    lock: Any = aggregator.store.lock
    pieces = Renderer(aggregator.store, openmetrics=False).render()
    with at_checkpoints(lambda: held.append(lock._is_owned())):
        aggregator.refresh()
        assert len(held) >= sum(isinstance(metric, Histogram) for metric in CATALOG)
        assert not any(held)
        held.clear()
        next(pieces)
        series = sum(len(family.cells) for family in aggregator.store)
        assert len(held) > series
        assert all(held)  # while the store is read: whoever adds waits, and who serves goes on
        held.clear()
        held.extend(lock._is_owned() for _ in pieces)
    assert len(held) > 2 * series
    assert not any(held)


def test_only_wanted_families_are_rendered() -> None:
    renderer = Renderer(full_collector().store, openmetrics=False)
    pieces = renderer.render(lambda name: name == "vllm_requests_finished_total")
    assert {family.name for family in parse_text(b"".join(pieces).decode())} == {"vllm_requests_finished"}


# --- Other readers


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not on PATH")
def test_promtool_accepts_the_page() -> None:
    text = page(full_collector())
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=text.encode(), capture_output=True, check=False, timeout=30
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")


def test_values_are_exact() -> None:
    aggregator = collect(step(running=1, kv_cache_usage=0.1 + 0.2, flops=2**60 + 1, iterated=True))
    shown = samples(parse_text(page(aggregator)))
    assert shown["vllm_kv_cache_usage_ratio", frozenset(ENGINE.items())] == 0.1 + 0.2
    assert shown["vllm_perf_flops_total", frozenset(ENGINE.items())] == float(2**60 + 1)
    assert all(math.isfinite(value) for value in shown.values())
