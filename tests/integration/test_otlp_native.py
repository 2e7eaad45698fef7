"""vLLM's own metrics that take long to be read, or never come: ours are pushed all the same, and theirs once they can."""

import contextlib
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from tests.unit.builders import MODEL, Sight, feed, step
from tests.unit.fake_vllm import FakeVllm, fake_vllm  # noqa: F401 - a fixture
from tests.unit.otlp import AGE, HOST, VERSION, HttpReceiver, Key, free_port, points, said
from tests.unit.peer import Peer, answer
from tests.waiting import wait_until
from vllm_vitals.aggregation.aggregator import Aggregator
from vllm_vitals.config.settings import Settings
from vllm_vitals.deployment.sidecar import NativeSidecar
from vllm_vitals.exporters.otlp.exporter import OtlpExporter, _read, otlp_exporter
from vllm_vitals.vllm_page.parse import Page

ENGINE = frozenset({("model_name", MODEL), ("engine", "0")})
NATIVE = ("vllm:generation_tokens_total", ENGINE)
RUNNING = ("vllm:num_requests_running", ENGINE)
TOKENS = ("vllm.tokens.generation", ENGINE)
STEPS = ("vitals.steps", ENGINE)
INTERVAL, BOUND = 0.2, 1.0
AT_HAND = 60.0
"""Seconds within which a page comes that a test holds back."""

soon = partial(wait_until, seconds=AT_HAND)
either = pytest.mark.parametrize("temporality", ["cumulative", "delta"])


class Vllm:
    """What has vLLM's own metrics, and gives them at once, after a while, or not until it is let go on."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        labels = ("model_name", "engine")
        self.tokens = Counter("vllm:generation_tokens", "T.", labels, registry=self.registry).labels(MODEL, "0")
        self.tokens.inc(7)
        Gauge("vllm:num_requests_running", "R.", labels, registry=self.registry).labels(MODEL, "0").set(3)
        self.seconds = 0.0
        self.held = threading.Event()
        """Set once a reading is held up."""
        self._free = threading.Event()
        self._free.set()

    def hold(self) -> None:
        """Let the next reading hang."""
        self.held.clear()
        self._free.clear()

    def let_go(self) -> None:
        self._free.set()

    def describe(self) -> list[Any]:
        return []

    def collect(self) -> list[Any]:
        """As a collector of somebody else's in the registry, after vLLM's."""
        time.sleep(self.seconds)
        if not self._free.is_set():
            self.held.set()
            self._free.wait()
        return []

    @contextlib.contextmanager
    def serve(self, way: str) -> Iterator[Any]:
        """Give what gives the registry, or a page of it that hangs or trickles where it is held."""
        try:
            if way == "registry":
                self.registry.register(self)
                yield lambda: self.registry
            else:
                with Peer(_Pieces(self, trickles=way == "trickles")) as peer:
                    yield Page(peer.url(), AT_HAND).fresh
                    self.let_go()
        finally:
            self.let_go()


class _Pieces:
    """The page of a vLLM as it is sent."""

    def __init__(self, vllm: Vllm, *, trickles: bool) -> None:
        self._vllm = vllm
        self._trickles = trickles

    def __iter__(self) -> Iterator[bytes]:
        data = answer(generate_latest(self._vllm.registry), "Content-Type: text/plain; version=0.0.4")
        while not self._vllm._free.is_set() and len(data) > 1:
            self._vllm.held.set()
            if self._trickles:
                yield data[:1]
                data = data[1:]
            self._vllm._free.wait(0.05)
        yield data


@contextlib.contextmanager
def pushing(vllm: Vllm, way: str = "registry", **otlp: Any) -> Iterator[tuple[HttpReceiver, Aggregator, OtlpExporter]]:
    """Give a receiver, a collector, and what pushes that with vLLM's own metrics once it is started."""
    with HttpReceiver().serve() as receiver, vllm.serve(way) as native:
        values = {"endpoint": receiver.endpoint, "include_native": True, "interval": INTERVAL}
        settings = Settings(otlp={**values, "shutdown_timeout": AT_HAND, **otlp}, stale_after=0)  # type: ignore[arg-type]
        aggregator = Aggregator(settings)
        exporter = otlp_exporter(aggregator, settings, VERSION, AGE, native)
        try:
            yield receiver, aggregator, exporter
        finally:
            exporter.stop()
            exporter._close()
            exporter._native.end()  # type: ignore[union-attr]


@pytest.fixture(autouse=True)
def _direct(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    caplog.set_level("INFO")


def total(receiver: HttpReceiver, key: Key, temporality: str = "cumulative") -> float:
    """Return what a receiver makes of the pushes that it got."""
    pushed = [found[key].as_double for push in list(receiver.received) if key in (found := points(push.message))]
    return sum(pushed) if temporality == "delta" else (pushed or [0.0])[-1]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text for level, text in said(caplog.records) if level != "INFO"]


def gaps(receiver: HttpReceiver) -> list[float]:
    """Return the seconds between pushes."""
    return [b.time - a.time for a, b in zip(receiver.received, receiver.received[1:], strict=False)]


@either
@pytest.mark.parametrize("way", ["registry", "hangs", "trickles"])
def test_ours_are_pushed_at_each_interval_while_vllms_hang_and_those_come_again(
    way: str, temporality: str, caplog: pytest.LogCaptureFixture
) -> None:
    vllm = Vllm()
    with pushing(vllm, way, temporality=temporality) as (receiver, aggregator, exporter):
        exporter.start()
        soon(lambda: total(receiver, NATIVE, temporality) == 7)
        vllm.hold()
        soon(vllm.held.is_set)
        known = len(receiver.received)
        vllm.tokens.inc(3)
        for tokens in range(1, 5):
            feed(aggregator, step(running=1, generation_tokens=1))
            soon(lambda: total(receiver, TOKENS, temporality) == tokens)  # noqa: B023
        soon(lambda: len(receiver.received) > known + 5)
        assert not [push for push in receiver.received[known + 1 :] if NATIVE in points(push.message)]
        assert statistics.median(gaps(receiver)[known:]) < AT_HAND / 2
        vllm.let_go()
        soon(lambda: total(receiver, NATIVE, temporality) == 10)
        soon(lambda: RUNNING in receiver.last)
        assert total(receiver, TOKENS, temporality) == 4
    (line,) = warnings(caplog)
    assert "vLLM's own metrics take long to be read" in line
    assert (Sight(aggregator)("vitals_errors_total", process="0", stage="export") or 0) >= 5


@either
def test_a_registry_that_always_takes_long_is_pushed_a_little_later(temporality: str) -> None:
    vllm = Vllm()
    vllm.seconds = 1.4 * INTERVAL
    with pushing(vllm, temporality=temporality) as (receiver, _, exporter):
        exporter.start()
        soon(lambda: total(receiver, NATIVE, temporality) == 7)
        vllm.tokens.inc(3)
        soon(lambda: total(receiver, NATIVE, temporality) == 10)
        soon(lambda: len(receiver.received) > 5)
        assert statistics.median(gaps(receiver)) < AT_HAND / 2


def test_what_comes_late_tells_when_it_was_read() -> None:
    vllm = Vllm()
    with pushing(vllm, shutdown_timeout=0.0) as (receiver, _, exporter):
        vllm.hold()
        exporter.push(5.0)
        assert RUNNING not in receiver.last
        vllm.let_go()
        late: Any = exporter._native._late  # type: ignore[union-attr]
        assert late.done.wait(5)
        between = time.time_ns()
        vllm.hold()
        exporter.push(5.0)
        assert receiver.last[RUNNING].as_double == 3
        assert receiver.last[RUNNING].time_unix_nano < between < receiver.last[NATIVE].time_unix_nano


def test_it_is_read_once_at_a_time() -> None:
    def readers() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name == "vitals-bridge"}

    vllm, before = Vllm(), readers()
    vllm.hold()
    with pushing(vllm, shutdown_timeout=0.0) as (_, _, exporter):
        for _ in range(3):
            assert exporter.push(5.0).ok
        (reader,) = readers() - before
    soon(lambda: not reader.is_alive())


@pytest.mark.parametrize("error", [OSError, SystemExit])
def test_a_collector_that_raises_costs_neither_what_came_before_nor_the_next_reading(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def collect() -> list[Any]:
        raise error("broken")

    vllm = Vllm()
    # An interval that leaves a reading its time.
    with pushing(vllm, temporality="delta", shutdown_timeout=0.0, interval=60.0) as (receiver, aggregator, exporter):
        with monkeypatch.context() as broken:
            broken.setattr(vllm, "collect", collect)
            for _ in range(2):
                assert exporter.push(5.0).ok
        vllm.tokens.inc(3)
        assert exporter.push(5.0).ok
        assert [points(push.message).get(NATIVE) is not None for push in receiver.received] == [True, False, True]
        assert total(receiver, NATIVE, "delta") == 10
    assert warnings(caplog) == ["vllm-vitals: vLLM's own metrics could not be read"]
    assert Sight(aggregator)("vitals_errors_total", process="0", stage="export") == 2


def test_a_page_that_nobody_serves_yet_is_told_in_one_line_and_pushed_once_it_is_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    vllm = Vllm()
    with pushing(vllm, "hangs", shutdown_timeout=0.0, interval=60.0) as (receiver, aggregator, exporter):
        page, url = exporter._native._work, f"http://{HOST}:{free_port()}/metrics"  # type: ignore[union-attr]
        exporter._native._work = partial(_read, Page(url, AT_HAND).fresh)  # type: ignore[union-attr]
        for _ in range(2):
            assert exporter.push(5.0).ok
        exporter._native._work = page  # type: ignore[union-attr]
        assert exporter.push(5.0).ok
        assert [NATIVE in points(push.message) for push in receiver.received] == [False, False, True]
    (line,) = warnings(caplog)
    assert line.startswith(f"vllm-vitals: vLLM's own metrics could not be read, trying again at every push: {url}: ")
    assert "Connection refused" in line
    assert [record for record in caplog.records if record.exc_info] == []
    assert Sight(aggregator)("vitals_errors_total", process="0", stage="export") == 2


def test_serving_does_not_feel_a_registry_that_hangs(
    vllm: FakeVllm, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    native = Vllm()
    with HttpReceiver().serve() as receiver, native.serve("registry") as registry:
        module = SimpleNamespace(get_prometheus_registry=registry)
        monkeypatch.setitem(sys.modules, "vllm.v1.metrics.prometheus", module)  # type: ignore[arg-type]
        monkeypatch.setenv("VITALS_OTLP__ENDPOINT", receiver.endpoint)
        monkeypatch.setenv("VITALS_OTLP__INTERVAL", str(INTERVAL))
        monkeypatch.setenv("VITALS_OTLP__SHUTDOWN_TIMEOUT", str(AT_HAND))
        monkeypatch.setenv("VITALS_OTLP__INCLUDE_NATIVE", "true")
        (logger,) = vllm.start("otlp")
        soon(lambda: total(receiver, NATIVE) == 7)
        native.hold()
        soon(native.held.is_set)
        slowest = 0.0
        for count in range(1, 6):
            for _ in range(100):
                begun = time.perf_counter()
                logger.record(SimpleNamespace(num_running_reqs=1), None, None, 0)
                slowest = max(slowest, time.perf_counter() - begun)
            soon(lambda: total(receiver, STEPS) == 100 * count)  # noqa: B023
        assert slowest < AT_HAND / 2  # the registry hangs for as long as it is held
        logger.record(SimpleNamespace(num_running_reqs=1), None, None, 0)
        begun = time.monotonic()
        vllm.host.stop()
        assert time.monotonic() - begun < AT_HAND / 2
        assert total(receiver, STEPS) == 501
    assert len(warnings(caplog)) == 1


@pytest.mark.parametrize("way", ["hangs", "trickles"])
def test_a_sidecar_pushes_on_while_vllms_page_does_not_come(way: str, caplog: pytest.LogCaptureFixture) -> None:
    vllm = Vllm()
    up = ("vllm.engine.up", ENGINE)
    with HttpReceiver().serve() as receiver, Peer(_Pieces(vllm, trickles=way == "trickles")) as peer:
        values = {
            "prometheus": {"port": 0, "host": HOST},
            "otlp": {"endpoint": receiver.endpoint, "interval": INTERVAL, "shutdown_timeout": BOUND},
            "native": {"url": peer.url(), "interval": 0.5, "timeout": 1.5},
        }
        sidecar = NativeSidecar(Settings.model_validate(values), peer.url())
        sidecar.start()
        try:
            soon(lambda: total(receiver, TOKENS) == 7)
            soon(lambda: receiver.last[up].as_double == 1)
            vllm.hold()
            soon(vllm.held.is_set)
            known = len(receiver.received)
            vllm.tokens.inc(3)
            soon(lambda: receiver.last[up].as_double == 0)
            soon(lambda: len(receiver.received) > known + 5)
            assert statistics.median(gaps(receiver)[known:]) < AT_HAND / 2
            assert receiver.last[TOKENS].as_double == 7
            vllm.let_go()
            soon(lambda: total(receiver, TOKENS) == 10)
            soon(lambda: receiver.last[up].as_double == 1)
            told = [text for _, text in said(caplog.records)]
            assert sum("vLLM's own metrics cannot be had" in text for text in told) == 1
            assert sum("vLLM's own metrics can be had again" in text for text in told) == 1
            vllm.hold()
            soon(vllm.held.is_set)
            begun = time.monotonic()
        finally:
            sidecar.stop()
            ended = time.monotonic()
            vllm.let_go()
    assert ended - begun < AT_HAND
