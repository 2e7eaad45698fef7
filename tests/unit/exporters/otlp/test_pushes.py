"""All pushes together are the store: nothing lost, nothing doubled, whatever fails in between."""

import threading
import time
from array import array
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import Metric as NativeMetric
from prometheus_client.multiprocess import MultiProcessCollector

from tests.unit.builders import MODEL, examples, facts, feed, step
from tests.unit.otlp import Key, metrics, points
from vllm_vitals._util import pacing
from vllm_vitals.aggregation.aggregator import Aggregator
from vllm_vitals.config.settings import Settings
from vllm_vitals.exporters.otlp import encode as encode_module
from vllm_vitals.exporters.otlp.exporter import OtlpExporter
from vllm_vitals.exporters.otlp.resource import process_resource
from vllm_vitals.exporters.otlp.response import PushResult
from vllm_vitals.exporters.otlp.target import Target
from vllm_vitals.exporters.prometheus.registry import VitalsCollector
from vllm_vitals.records.step import CacheUse, Finished, Sleep
from vllm_vitals.store.series import HistogramCell

pytestmark = pytest.mark.versions

OK, FAILED = PushResult(ok=True), PushResult(error="refused")


class Wire:
    """Stands in for the network: takes each push or fails, as it is told."""

    def __init__(self) -> None:
        self.answer = OK
        self.taken: list[Any] = []

    def send(self, message: bytes) -> PushResult:
        if self.answer.ok:
            self.taken.append(ExportMetricsServiceRequest.FromString(message))
        return self.answer

    def close(self) -> None:
        pass


class Link:
    """A collector, its exporter and the wire between it and its receiver."""

    def __init__(self, native: Any = None, **otlp: Any) -> None:
        settings = Settings(otlp={"endpoint": "http://nowhere", **otlp}, stale_after=0)
        self.wire = Wire()
        self.aggregator = Aggregator(settings)
        self.exporter = OtlpExporter(
            self.aggregator, settings.otlp, Target("http://nowhere", "http/protobuf"),
            process_resource({}, service="s", version="1", attributes={}),
            started=time.time() - 10, fresh=60.0, make=lambda *_: self.wire, native=native,
        )  # fmt: skip

    def push(self, *, ok: bool = True, answer: PushResult | None = None) -> PushResult:
        self.wire.answer = answer or (OK if ok else FAILED)
        return self.exporter.push(5.0)

    def sums(self) -> dict[Key, tuple[Any, ...]]:
        """Return what a receiver that adds differences up, or keeps the last total, has of each series."""
        total: dict[Key, Any] = {}
        for message in self.wire.taken:
            kinds = metrics(message)
            for key, point in points(message).items():
                whole = _numbers(kinds[key[0]].WhichOneof("data"), point)
                if self.exporter._builder._delta and key in total and kinds[key[0]].WhichOneof("data") != "gauge":
                    total[key] = _plus(total[key], whole)
                else:
                    total[key] = whole
        return total

    def held(self, *, but: str = "vitals.export") -> dict[Key, tuple[Any, ...]]:
        """Return what the store has of each series that counts."""
        self.aggregator.refresh()
        found: dict[Key, tuple[Any, ...]] = {}
        for family in self.aggregator.store:
            if family.metric.kind == "gauge" or family.metric.name.startswith(but):
                continue
            for key, cell in family.cells.items():
                pairs = zip(family.metric.labelnames, key, strict=True)
                found[family.metric.name, frozenset((name, value) for name, value in pairs if value)] = _of_cell(cell)
        return found


def _numbers(kind: str, point: Any) -> tuple[Any, ...]:
    if kind == "histogram":
        return (point.count, point.sum, *point.bucket_counts)
    if kind == "exponential_histogram":
        return (point.count, point.sum, point.zero_count, sum(point.positive.bucket_counts))
    return (point.as_double,)


def _plus(one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(a + b for a, b in zip(one, other, strict=True))


def _of_cell(cell: Any) -> tuple[Any, ...]:
    if not isinstance(cell, HistogramCell):
        return (cell.value,)
    count = sum(cell.counts)
    if cell.exponential is not None:
        return (count, cell.total, cell.exponential.zeros, int(cell.exponential.counts.sum()))
    return (count, cell.total, *cell.counts)


# Quarters add up without rounding, so that sums must be equal to the last digit.
quarters = st.integers(0, 400).map(lambda n: n / 4)
requests = st.builds(
    Finished, st.sampled_from(["stop", "length", "abort", "error"]), duration=quarters, queue=quarters, decode=quarters,
    output_tokens=st.integers(0, 9), input_tokens=st.integers(0, 999),
)  # fmt: skip
steps = st.builds(
    lambda engine, tokens, latencies, ended, lora, use: step(
        engine=engine, running=1, generation_tokens=tokens, prompt_tokens={"local_compute": tokens},
        inter_token_latencies=array("d", latencies), finished=ended, lora_running={lora: 1},
        prefix_cache=CacheUse(*sorted(use, reverse=True)), iterated=True,
    ),
    st.sampled_from(["0", "1", "2"]), st.integers(0, 50), st.lists(quarters, max_size=5), st.lists(requests, max_size=3),
    st.sampled_from(["a", "b"]), st.tuples(st.integers(0, 9), st.integers(0, 9)),
)  # fmt: skip
events = st.lists(st.one_of(steps, st.sampled_from([True, False])), max_size=25)

both = pytest.mark.parametrize("histograms", ["explicit", "exponential"])
either = pytest.mark.parametrize("temporality", ["cumulative", "delta"])


@both
@either
@examples(60)
@given(events=events)
def test_all_that_was_taken_is_the_store(temporality: str, histograms: str, events: list[Any]) -> None:
    link = Link(temporality=temporality, histograms=histograms)
    feed(link.aggregator, facts("0"))
    for event in events:
        if isinstance(event, bool):
            link.push(ok=event)
        else:
            feed(link.aggregator, event)
    link.push()
    got = {key: value for key, value in link.sums().items() if key in link.held()}
    assert got == link.held()


@either
def test_every_outcome_is_counted_once(temporality: str) -> None:
    link = Link(temporality=temporality)
    for ok in (True, False, False, True, True):
        link.push(ok=ok)
    held = link.held(but="nothing")
    label = frozenset({("exporter", "otlp")})
    assert (held["vitals.exports", label], held["vitals.exports.failed", label]) == ((3,), (2,))
    assert held["vitals.export.duration", label][0] == 3
    link.push()
    assert link.sums()["vitals.exports", label] == (3,)


@either
def test_a_series_that_appears_during_an_outage_arrives_whole(temporality: str) -> None:
    link = Link(temporality=temporality)
    feed(link.aggregator, step(engine="0", running=1))
    link.push()
    for _ in range(3):
        feed(link.aggregator, step(engine="late", running=1, generation_tokens=7))
        link.push(ok=False)
    link.push()
    key = ("vllm.tokens.generation", frozenset({("model_name", MODEL), ("engine", "late")}))
    assert link.sums()[key] == (21,)
    assert points(link.wire.taken[-1])[key].start_time_unix_nano < points(link.wire.taken[-1])[key].time_unix_nano


@either
def test_a_gauge_that_vanished_is_not_pushed_again(temporality: str) -> None:
    link = Link(temporality=temporality)
    key = ("vllm.lora.requests", frozenset({*{"model_name": MODEL, "engine": "0"}.items(), ("adapter", "sql"),
                                            ("state", "running")}))  # fmt: skip
    shown = []
    for adapters in ({"sql": 1}, {}, {"sql": 2}):
        feed(link.aggregator, step(running=1, lora_running=adapters))
        link.push()
        shown.append(points(link.wire.taken[-1]).get(key))
    assert shown[0].as_double == 1
    assert shown[1] is None
    assert shown[2].as_double == 2


def test_delta_leaves_out_what_did_not_change() -> None:
    link = Link(temporality="delta")
    feed(link.aggregator, step(running=1, generation_tokens=3))
    link.push()
    link.push()
    names = {name for name, _ in points(link.wire.taken[-1])}
    assert "vllm.tokens.generation" not in names
    assert "vllm.request.duration" not in names
    assert "vllm.engine.requests.running" in names


def test_delta_windows_adjoin_and_span_an_outage() -> None:
    link = Link(temporality="delta")
    for ok in (True, False, True):
        feed(link.aggregator, step(running=1))
        link.push(ok=ok)
    first, second = (metrics(message)["vitals.steps"].sum.data_points[0] for message in link.wire.taken)
    assert second.start_time_unix_nano == first.time_unix_nano
    assert (first.as_double, second.as_double) == (1, 2)


def test_extremes_are_those_of_the_window_or_absent() -> None:
    link = Link(temporality="delta")
    for values in ([0.25, 8.0], [1.0]):
        feed(link.aggregator, step(running=1, iterated=True, inter_token_latencies=array("d", values)))
        link.push()
    first, second = (
        metrics(message)["vllm.request.inter_token_latency"].histogram.data_points[0] for message in link.wire.taken
    )
    assert (first.min, first.max) == (0.25, 8.0)
    assert not second.HasField("min") or (second.min, second.max) == (1.0, 1.0)


def test_a_push_without_some_of_its_points_is_not_sent_again() -> None:
    link = Link(temporality="delta")
    feed(link.aggregator, step(running=1, generation_tokens=3))
    link.push(answer=PushResult(ok=True, rejected=2, warning="too old"))
    feed(link.aggregator, step(running=1, generation_tokens=4))
    link.push()
    key = ("vllm.tokens.generation", frozenset({("model_name", MODEL), ("engine", "0")}))
    assert [points(message)[key].as_double for message in link.wire.taken] == [3, 4]


def test_what_comes_while_a_push_is_under_way_is_in_the_next() -> None:
    link = Link(temporality="delta")
    feed(link.aggregator, step(running=1, generation_tokens=1))
    plain = link.wire.send

    def send(message: bytes) -> PushResult:
        answer = plain(message)
        feed(link.aggregator, step(running=1, generation_tokens=10))
        return answer

    link.wire.send = send  # type: ignore[method-assign]
    link.push()
    link.push()
    key = ("vllm.tokens.generation", frozenset({("model_name", MODEL), ("engine", "0")}))
    assert link.sums()[key] == (11,)


@either
def test_a_push_that_cannot_be_encoded_loses_nothing(temporality: str, monkeypatch: pytest.MonkeyPatch) -> None:
    link = Link(temporality=temporality)
    feed(link.aggregator, step(running=1, generation_tokens=5))
    with monkeypatch.context() as broken:
        broken.setattr(link.exporter._builder, "build", lambda: 1 / 0)
        assert "ZeroDivisionError" in link.push().error
    feed(link.aggregator, Sleep(MODEL, "0", "awake"))
    link.push()
    key = ("vllm.tokens.generation", frozenset({("model_name", MODEL), ("engine", "0")}))
    assert link.sums()[key] == (5,)
    assert link.held()["vitals.errors", frozenset({("process", "0"), ("stage", "export")})] == (1,)


# --- Pacing


def large_link() -> Link:
    link = Link()
    features = {metric.metric.needs for metric in link.aggregator.store} - {""}
    feed(link.aggregator, *(facts(str(engine), *features) for engine in range(8)))
    return link


def test_the_encoder_rests_between_points(monkeypatch: pytest.MonkeyPatch) -> None:
    rests = 0

    def counting() -> None:
        nonlocal rests
        rests += 1

    link = large_link()
    monkeypatch.setattr(encode_module, "checkpoint", counting)
    assert link.push().ok
    count = len(points(link.wire.taken[-1]))
    assert count > 400
    assert rests >= count + len(metrics(link.wire.taken[-1]))


def test_it_really_sleeps_between_pieces_of_work(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    real = time.sleep

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        real(0)

    link = large_link()
    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(pacing, "PIECE_SECONDS", 0.0)
    assert link.push().ok
    assert len(slept) > 400


@either
def test_native_metrics_that_cannot_be_read_once_are_neither_lost_nor_doubled(temporality: str) -> None:
    registry, broken = CollectorRegistry(), threading.Event()
    counter = Counter("vllm:prompt_tokens", "Prompts.", registry=registry)
    counter.inc(7)

    def native() -> CollectorRegistry:
        if broken.is_set():
            raise OSError
        return registry

    link = Link(native=native, temporality=temporality)
    feed(link.aggregator, step(running=1, generation_tokens=5))
    assert link.push().ok
    broken.set()
    feed(link.aggregator, step(running=1, generation_tokens=5))
    assert link.push().ok  # ours leave without them
    broken.clear()
    counter.inc(1)
    assert link.push().ok
    assert link.sums()["vllm:prompt_tokens_total", frozenset()] == (8,)
    assert link.sums()["vllm.tokens.generation", frozenset({("model_name", MODEL), ("engine", "0")})] == (10,)
    errors = frozenset({("process", "0"), ("stage", "export")})
    assert link.held()["vitals.errors", errors] == (1,)


def test_a_broken_file_of_a_multiprocess_directory_does_not_cost_the_push(tmp_path: Path) -> None:
    (tmp_path / "counter_1.db").write_bytes(b"\xff\x00\x00\x00")
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(tmp_path))
    link = Link(native=lambda: registry, temporality="delta")
    for tokens in (5, 6):
        feed(link.aggregator, step(running=1, generation_tokens=tokens))
        assert link.push().ok
    assert link.sums()["vllm.tokens.generation", frozenset({("model_name", MODEL), ("engine", "0")})] == (11,)
    errors = frozenset({("process", "0"), ("stage", "export")})
    assert link.held()["vitals.errors", errors] == (2,)


def test_ours_on_vllms_page_are_not_pushed_twice() -> None:
    registry = CollectorRegistry()
    link = Link(native=lambda: registry)
    feed(link.aggregator, step(running=1, generation_tokens=5))
    registry.register(VitalsCollector(link.aggregator))  # as prometheus.join_native does
    link.push()
    names = [metric.name for metric in metrics(link.wire.taken[-1]).values()]
    assert "vllm.tokens.generation" in names
    assert [name for name in names if name.startswith(("vllm_", "vitals_", "gen_ai_"))] == []


def test_a_native_unit_that_nobody_allows_does_not_cost_the_push() -> None:
    registry = CollectorRegistry()
    Gauge("odd", "Odd.", unit="", registry=registry).set(1)
    odd = NativeMetric("long", "Long.", "gauge")
    odd.unit = "µ" * 100
    odd.add_sample("long", {}, 2.0)
    registry.register(type("Odd", (), {"collect": lambda _: [odd]})())
    link = Link(native=lambda: registry)
    assert link.push().ok
    assert link.sums()["long", frozenset()] == (2,)
