"""An `AsyncLLM` that ends in a process that lives on is gone soon, however it ends; another one is not."""

import gc
import threading
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.builders import Clock, Sight
from tests.unit.fake_vllm import FakeVllm, fake_vllm, make_config
from tests.waiting import wait_until
from vllm_vitals.catalog.engine import UP
from vllm_vitals.ingest import step_drainer as feed
from vllm_vitals.vllm import life
from vllm_vitals.vllm.life import LINGER

__all__ = ["fake_vllm"]

RUNNING = "vllm_engine_requests_running"
TOKENS = "vllm_tokens_generation_total"


class EngineCore:
    """The client of an engine, with the finalizer that vLLM's has."""

    def __init__(self) -> None:
        self._finalizer = weakref.finalize(self, lambda: None)

    def shutdown(self) -> None:
        self._finalizer.detach()


class AsyncLLM:
    """As vLLM's: it makes the client of its engines, then the loggers, and shuts down when it is deleted."""

    def __init__(self, vllm: FakeVllm, config: Any = None, model: str = "m") -> None:
        self.config = config or make_config(model)
        self.engine_core = EngineCore()
        self.loggers = vllm.start("prometheus", config=self.config)

    def step(self, tokens: int = 1) -> None:
        scheduler = SimpleNamespace(num_running_reqs=1, kv_cache_usage=0.25)
        self.loggers[0].record(scheduler, SimpleNamespace(num_generation_tokens=tokens), None, 0)

    def shutdown(self) -> None:
        self.engine_core.shutdown()

    def __del__(self) -> None:
        self.shutdown()


class Bare:
    """What makes loggers, and has no client that we know."""

    def __init__(self, vllm: FakeVllm) -> None:
        self.loggers = vllm.start("prometheus")


class Watched(Clock):
    """A clock that notes how often anybody looks."""

    looks = 0

    def monotonic(self) -> float:
        self.looks += 1
        return super().monotonic()


@pytest.fixture
def time_to_go(monkeypatch: pytest.MonkeyPatch) -> Watched:
    """Give the clock by which a client that was shut down is over."""
    clock = Watched()
    monkeypatch.setattr(life, "time", clock)
    return clock


def shown(sight: Sight, model: str = "m") -> tuple[float | None, float | None]:
    """Return whether an engine is up, and one of its gauges."""
    labels = {"model_name": model, "engine": "0"}
    return sight("vllm_engine_up", **labels), sight(RUNNING, **labels)


def gone(vllm: FakeVllm, clock: Clock) -> None:
    """Let the time go by after which nothing more can come."""
    vllm.sight()
    clock.now += LINGER


def test_one_that_is_shut_down_and_kept_is_gone(vllm: FakeVllm, time_to_go: Clock) -> None:
    llm = AsyncLLM(vllm)
    llm.step(3)
    assert shown(vllm.sight()) == (1, 1)
    llm.shutdown()
    llm.step(4)  # what its output handler was at
    assert shown(vllm.sight()) == (1, 1)
    llm.step(5)
    gone(vllm, time_to_go)
    sight = vllm.sight()
    assert shown(sight) == (0, None)
    assert sight.of_engine("vitals_step_age_seconds") is None
    assert sight.of_engine(TOKENS) == 12
    llm.step(6)
    assert vllm.sight().of_engine(TOKENS) == 12
    assert not llm.loggers[0]._queue.calls


def test_one_that_is_deleted_is_gone_though_its_configuration_and_loggers_are_kept(
    vllm: FakeVllm, time_to_go: Clock
) -> None:
    llm = AsyncLLM(vllm)
    kept = llm.config, llm.loggers
    llm.step()
    del llm
    gone(vllm, time_to_go)
    assert shown(vllm.sight()) == (0, None)
    assert kept


def test_it_is_noticed_though_nobody_asks(vllm: FakeVllm, time_to_go: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """With ten seconds between two drains, and no scrape."""
    monkeypatch.setattr(feed, "CHECK_SECONDS", 0.02)
    llm = AsyncLLM(vllm)
    store = vllm.host.aggregator.store
    llm.shutdown()
    assert store[UP].number(("m", "0")).value == 1
    wait_until(lambda: time_to_go.looks)
    time_to_go.now += LINGER
    wait_until(lambda: store[UP].number(("m", "0")).value == 0)


def test_a_finalizer_that_is_not_there_is_made_up_for_by_the_logger(vllm: FakeVllm) -> None:
    bare = Bare(vllm)
    bare.loggers[0].record(SimpleNamespace(num_running_reqs=1), None, None, 0)
    config = bare.loggers[0]._config
    assert shown(vllm.sight()) == (1, 1)
    del bare
    gc.collect()
    assert shown(vllm.sight()) == (0, None)
    assert config


def test_new_loggers_of_one_that_goes_on_are_no_end(vllm: FakeVllm, time_to_go: Clock) -> None:
    """As when vLLM scales its engines up."""
    llm = AsyncLLM(vllm)
    llm.step()
    llm.loggers.clear()
    gc.collect()
    gone(vllm, time_to_go)
    assert shown(vllm.sight()) == (1, 1)


def test_another_of_the_same_name_stays(vllm: FakeVllm, time_to_go: Clock) -> None:
    going, staying = AsyncLLM(vllm), AsyncLLM(vllm)
    other = AsyncLLM(vllm, model="other")
    for each in (going, staying, other):
        each.step()
    going.shutdown()
    gone(vllm, time_to_go)
    sight = vllm.sight()
    assert [shown(sight), shown(sight, "other")] == [(1, 1)] * 2
    staying.shutdown()
    gone(vllm, time_to_go)
    sight = vllm.sight()
    assert [shown(sight), shown(sight, "other")] == [(0, None), (1, 1)]
    assert sight.of_engine(TOKENS) == 2


def test_one_that_comes_while_another_goes_is_up(vllm: FakeVllm, time_to_go: Clock) -> None:
    config = make_config()
    for count in range(1, 4):
        llm = AsyncLLM(vllm, config)
        llm.step()
        sight = vllm.sight()
        assert (shown(sight), sight.of_engine(TOKENS)) == ((1, 1), count)
        llm.shutdown()
        vllm.sight()
    gone(vllm, time_to_go)
    assert shown(vllm.sight()) == (0, None)


def test_fifty_leave_nothing_behind(vllm: FakeVllm, time_to_go: Clock) -> None:
    def there() -> tuple[int, ...]:
        host = vllm.host
        sizes = map(len, (host._clients, host.drainer._sources, host._placements, host.aggregator._engines))
        series = sum(len(family.cells) for family in host.aggregator.store)
        return (threading.active_count(), len(list(Path("/proc/self/fd").iterdir())), series, *sizes)

    after = []
    for number in range(50):
        llm = AsyncLLM(vllm)
        llm.step()
        vllm.sight()
        llm.shutdown()
        if number % 2:
            del llm
        gone(vllm, time_to_go)
        vllm.sight()
        after.append(there())
    assert all(last <= early for last, early in zip(after[-1], after[1], strict=True)), (after[1], after[-1])
    assert vllm.sight().of_engine(TOKENS) == 50


def test_it_may_end_in_any_thread_and_in_the_middle_of_a_step(vllm: FakeVllm, time_to_go: Clock) -> None:
    """Whatever was recorded before the end counts, and the end runs where it was asked for, never on a thread of ours."""
    ended_on: list[str] = []

    class Told(EngineCore):
        def shutdown(self) -> None:
            super().shutdown()
            ended_on.append(threading.current_thread().name)

    class Holder:
        """Takes another down with it."""

        def __init__(self, llm: AsyncLLM) -> None:
            self.llm = llm

        def __del__(self) -> None:
            self.llm.shutdown()

    total = 0
    for number in range(6):
        holder = [Holder(AsyncLLM(vllm))]
        holder[0].llm.engine_core.__class__ = Told
        stop = threading.Event()

        def work(logger: Any = holder[0].llm.loggers[0], stop: threading.Event = stop) -> None:
            nonlocal total
            while not stop.is_set():
                logger.record(SimpleNamespace(num_running_reqs=1), SimpleNamespace(num_generation_tokens=1), None, 0)
                total += 1
                vllm.host.drainer.drain()

        worker = threading.Thread(target=work)
        worker.start()
        wait_until(lambda least=total: total > least)
        if number % 2:
            ender = threading.Thread(target=holder.clear, name="ender")
            ender.start()
            ender.join(30)
        else:
            holder.clear()
        stop.set()
        worker.join(30)
        vllm.sight()
        gone(vllm, time_to_go)
    sight = vllm.sight()
    assert shown(sight) == (0, None)
    assert sight.of_engine(TOKENS) == total
    assert set(ended_on) == {"MainThread", "ender"}


def test_one_whose_start_fails_after_its_loggers_is_gone(vllm: FakeVllm, time_to_go: Clock) -> None:
    class Failing(AsyncLLM):
        def __init__(self) -> None:
            super().__init__(vllm)
            raise RuntimeError("no GPU")

    with pytest.raises(RuntimeError, match="no GPU"):
        Failing()
    gc.collect()
    gone(vllm, time_to_go)
    assert shown(vllm.sight()) == (0, None)
