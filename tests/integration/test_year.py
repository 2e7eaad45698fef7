"""Months of two engines behind two API servers, on a clock that is turned: time adds up, counts are exact, nothing grows.

With `--effort=all` it is a year.
"""

import gc
import random
import sys
import types
from array import array
from collections import Counter as Tally
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from tests.unit.builders import EPOCH, MODEL, Clock
from vllm_vitals.aggregation import merge
from vllm_vitals.aggregation.aggregator import Aggregator
from vllm_vitals.aggregation.merge import Merger
from vllm_vitals.catalog import cache, cost, engine, gen_ai, requests, self_metrics, slo
from vllm_vitals.catalog.connectors import IO
from vllm_vitals.catalog.metric import Metric
from vllm_vitals.config.settings import Settings
from vllm_vitals.exporters.otlp.encode import PushBuilder
from vllm_vitals.exporters.prometheus.text import Renderer
from vllm_vitals.records.step import CacheUse, Facts, Finished, Health, Rejection, Reported, Sleep, Speculation, Step
from vllm_vitals.store.series import HistogramCell, NumberCell

DAYS = {"test": (12, 24, 49), "all": (60, 120, 364)}
"""After which days it is seen what is held; after the last it is over."""
HOUR = 3600.0
ENGINES = ("0", "1")
BATCH, GPUS, PRICE = 8, 2, 3.5
SLOS = [{"name": "quick", "target": 0.9, "e2e": 2}, {"name": "any", "target": 0.99, "e2e": "1h"}]
STATIC = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.CodeType, Metric)


class Year:
    """What the engines do, the truth about it, and what a collector is told."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.chance = random.Random(7)
        settings = Settings.model_validate({"slos": SLOS, "price": {"per_gpu_hour": PRICE}})
        self.aggregator = Aggregator(settings)
        self.merger = Merger(self.aggregator)
        self.renderer = Renderer(self.aggregator.store, openmetrics=True)
        self.points = PushBuilder(
            self.aggregator.store, temporality="delta", exponential=False, started=EPOCH, fresh=60.0
        )
        self.truth: Tally[Any] = Tally()
        self.servers: list[str] = []
        self.lives = 0
        self.days = 0
        self._state: dict[str, tuple[str, float]] = {}
        self._worked: dict[str, float | None] = {}

    # What happens

    def start(self) -> None:
        """Start both API servers anew."""
        self.servers = [f"server {self.lives}-{rank}" for rank in range(2)]
        self.lives += 1
        for server in self.servers:
            facts = (
                Facts(MODEL, name, max_num_seqs=BATCH, kv_cache_tokens=65536, gpus=GPUS, features=frozenset({"lora"}))
                for name in ENGINES
            )
            self.merger.take(server, list(facts), self.clock.now)
        for name in ENGINES:
            self._state[name], self._worked[name] = ("idle", self.clock.now), None

    def stop(self) -> None:
        """Stop both, and all engines with them."""
        self.wait(1.5)  # the last steps are told
        for name in ENGINES:
            self._turn(name, "gone", self.clock.now)
        for server in self.servers:
            self.merger.leave(server)

    def wait(self, seconds: float) -> None:
        """Let time pass in which nothing happens."""
        self.clock.now += seconds
        self.tell({})

    def sleep(self, seconds: float) -> None:
        for state, limited in (("weights_offloaded", "asleep"), ("awake", "idle")):
            for name in ENGINES:
                self._turn(name, limited, self.clock.now)
                self._worked[name] = None
            told = [Sleep(MODEL, name, state, self.clock.now) for name in ENGINES]
            self.tell({self.servers[0]: told})
            self.wait(seconds)

    def tell(self, told: dict[str, list[Any]]) -> None:
        for server in self.servers:
            self.merger.take(server, told.get(server, []), self.clock.now)

    def burst(self) -> None:
        """Work for a minute: ten steps of each engine, after which none has anything to do."""
        alive = dict.fromkeys(ENGINES, 0)
        for number in range(10):
            told: dict[str, list[Any]] = {}
            for place, name in enumerate(ENGINES):
                self.clock.now += 0.25
                made, alive[name] = self._step(name, alive[name], last=number == 9)
                told[self.servers[(number + place) % 2]] = [made]  # the scheduler's stats go to one of them each time
            self.tell(told)
            self.clock.now += 4.5
        if self.chance.random() < 0.1:
            self.tell({self.servers[0]: [Rejection(MODEL, "max_num_queued_reqs", 3)]})
            self.truth["rejected"] += 3
        self.tell({self.servers[1]: [Health(hook_time=0.25, process="1")]})
        self.truth["hook"] += 0.25

    def _step(self, name: str, alive: int, *, last: bool) -> tuple[Step, int]:
        """Return a step of an engine, and how many requests are in it after."""
        chance, truth, now = self.chance, self.truth, self.clock.now
        started = chance.randint(0, BATCH - alive)
        alive += started
        leaving = chance.randint(0, alive) if chance.random() < 0.2 else 0
        ending = alive - leaving if last else chance.randint(0, alive - leaving)
        alive = 0 if last else alive - leaving - ending
        waiting = chance.randint(1, 9) if alive == BATCH and chance.random() < 0.5 else 0
        latencies = array("d", [1.0, *(chance.randint(1, 64) / 64 for _ in range(started - 1))][:started])
        between = array("d", [chance.randint(1, 64) / 1024 for _ in range(alive)])
        ended = tuple(self._finished(now) for _ in range(ending))
        adapters = {f"adapter-{chance.randrange(10**9)}": 1 for _ in range(min(alive, 3))}
        prompt, generated, again = 100 * started, started + alive, chance.randint(0, 5)
        made = Step(
            MODEL, name, EPOCH + now, now, now, running=alive, waiting=waiting, deferred=0, kv_cache_usage=alive / 16,
            prefix_cache=CacheUse(prompt, prompt // 2, again), lora_running=adapters, speculation=Speculation(1, 3, (1, 0)),
            iterated=True, processing=1 / 1024, prompt_tokens={"local_compute": prompt}, computed_tokens=prompt,
            generation_tokens=generated, scheduled_tokens={"prefill": prompt, "decode": generated}, finished=ended,
            first_token_latencies=latencies or None, inter_token_latencies=between or None,
            connectors=(Reported(IO.name, ("NixlConnector", "receive"), array("d", [4096.0])),),
        )  # fmt: skip
        truth["steps", name] += 1
        truth["prompt"] += prompt
        truth["generated"] += generated
        truth["again"] += again
        truth["moved"] += 4096
        truth["started"] += started
        truth["first"] += sum(latencies)
        truth["between"] += sum(between)
        truth["betweens"] += len(between)
        truth["left", name] += leaving
        if (before := self._worked[name]) is not None:
            truth["intervals"] += 1
            truth["interval"] += now - before
        self._worked[name] = now if alive or waiting else None
        if latencies and self._state[name][0] == "idle":
            self._turn(name, "none", max(now - max(latencies), self._state[name][1]))  # what came then was at work
        self._turn(name, "max_num_seqs" if waiting else "none" if alive else "idle", now)
        return made, alive

    def _finished(self, now: float) -> Finished:
        seconds = self.chance.randint(1, 256) / 64
        reason = self.chance.choice(["stop", "stop", "length", "error"])
        self.truth["finished", reason] += 1
        self.truth["duration"] += seconds
        for name, limit in (("quick", 2.0), ("any", 3600.0)):
            self.truth[name, "good" if seconds <= limit and reason != "error" else "bad"] += 1
        return Finished(
            reason, now, seconds, 0.0, seconds / 2, seconds / 2, seconds, 1 / 64, 100, 33, 50, 64, 0,
            f"request-{self.chance.randrange(10**12)}",
        )  # fmt: skip

    def _turn(self, name: str, state: str, now: float) -> None:
        """Give an engine's time up to now to the state that it was in."""
        before, since = self._state[name]
        self.truth["limited", name, before] += now - since
        self._state[name] = (state, now)

    # What is shown of it

    def day(self, number: int) -> None:
        midnight = self.clock.now
        if number % 3 == 0:
            self.sleep(2 * HOUR)
        for hour in range(8, 8 + self.chance.choice([4, 7, 10])):
            self.wait(midnight + hour * HOUR + self.chance.randint(0, 3000) - self.clock.now)
            self.burst()
            self.wait(60.0)
        self.wait(midnight + 23 * HOUR - self.clock.now)
        if number % 10 == 9:
            self.stop()
            self.clock.now += 300.0
            self.truth["down"] += 300.0
            self.start()
        self.wait(midnight + 24 * HOUR - self.clock.now)
        if number % 7 == 0:
            self.export()

    def export(self) -> None:
        self.aggregator.refresh()
        self.renderer.forget()
        assert sum(map(len, self.renderer.render())) > 10_000
        self.points.acknowledge(self.points.build())

    def number(self, metric: Metric[Any], *key: str) -> float:
        cell = self.aggregator.store[metric].cells[key]
        assert isinstance(cell, NumberCell)
        return cell.value

    def both(self, metric: Metric[Any], *own: str) -> float:
        return sum(self.number(metric, MODEL, name, *own) for name in ENGINES)

    def distribution(self, metric: Metric[Any], *own: str) -> tuple[int, float]:
        """Return how many values there are of both engines, and their sum."""
        cells = [self.aggregator.store[metric].cells[(MODEL, name, *own)] for name in ENGINES]
        found = [cell for cell in cells if isinstance(cell, HistogramCell)]
        return sum(sum(cell.counts) for cell in found), sum(cell.total for cell in found)

    def held(self) -> tuple[int, int, int]:
        """Return how many series, objects and bytes are held."""
        self.export()
        gc.collect()
        sizes = [sys.getsizeof(each) for each in reachable([self.aggregator, self.merger, self.renderer, self.points])]
        return sum(len(family.cells) for family in self.aggregator.store), len(sizes), sum(sizes)


def reachable(roots: Iterable[Any]) -> Iterator[Any]:
    """Yield every object that is held by others, but for code and declarations."""
    seen: set[int] = set()
    waiting = list(roots)
    while waiting:
        each = waiting.pop()
        if id(each) not in seen and not isinstance(each, STATIC):
            seen.add(id(each))
            yield each
            waiting.extend(gc.get_referents(each))


@pytest.fixture(scope="module")
def year(effort: str) -> Iterator[tuple[Year, list[tuple[int, int, int]]]]:
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock()
        for module in (merge, sys.modules[Aggregator.__module__]):
            patch.setattr(module, "time", clock)
        made = Year(clock)
        made.start()
        held = []
        for number in range(DAYS[effort][-1] + 1):
            made.day(number)
            if number in DAYS[effort]:
                held.append(made.held())
        made.days = number + 1
        made.stop()
        made.export()
        yield made, held


Lived = tuple[Year, list[tuple[int, int, int]]]


def test_all_time_is_counted_by_state(year: Lived) -> None:
    made, _ = year
    whole = made.clock.now - 100.0 - made.truth["down"]
    assert whole > 0.99 * made.days * 24 * HOUR
    for name in ENGINES:
        shown = {state: made.number(engine.LIMITED, MODEL, name, state) for state in engine.LIMITED.labels[0].values}
        assert sum(shown.values()) == pytest.approx(whole, rel=1e-9)
        for state, seconds in shown.items():
            # Of the first step that comes to an idle engine after a start, a part has been told as idle.
            assert seconds == pytest.approx(made.truth["limited", name, state], rel=1e-6, abs=made.lives), state
        assert {state for state, seconds in shown.items() if seconds} == {"none", "max_num_seqs", "idle", "asleep"}
        gpu = {state: made.number(cost.GPU_TIME, MODEL, name, state) for state in cost.STATES}
        assert sum(gpu.values()) == pytest.approx(GPUS * whole, rel=1e-9)
        assert gpu["asleep"] == pytest.approx(GPUS * shown["asleep"], rel=1e-9)
        money = sum(made.number(cost.COST, MODEL, name, state, "USD") for state in cost.STATES)
        assert money == pytest.approx(GPUS * whole / HOUR * PRICE, rel=1e-9)


def test_every_count_is_exact(year: Lived) -> None:
    made, _ = year
    truth = made.truth
    for name in ENGINES:
        assert made.number(self_metrics.STEPS, MODEL, name) == truth["steps", name] > 55 * made.days
        assert made.number(requests.ABANDONED, MODEL, name) == truth["left", name] > 2.7 * made.days
    assert made.both(requests.GENERATION_TOKENS) == truth["generated"]
    assert made.both(requests.PROMPT_TOKENS, "local_compute") == truth["prompt"]
    assert made.both(requests.RECOMPUTED_TOKENS) == truth["again"]
    assert made.both(cache.PREFIX_HITS, "local") == truth["prompt"] // 2
    assert made.both(cache.DRAFT_TOKENS) == 3 * (truth["steps", "0"] + truth["steps", "1"])
    assert made.both(IO, "NixlConnector", "receive") == truth["moved"]
    assert made.number(requests.REJECTED, MODEL, "max_num_queued_reqs") == truth["rejected"] > 0
    assert made.number(self_metrics.HOOK_TIME, "1") == truth["hook"]
    for reason in ("stop", "length", "error"):
        assert made.both(requests.FINISHED, reason) == truth["finished", reason] > 0
    for name in ("quick", "any"):
        for outcome in ("good", "bad"):
            assert made.both(slo.REQUESTS, name, outcome) == truth[name, outcome] > 0


def test_every_distribution_is_whole(year: Lived) -> None:
    made, _ = year
    truth = made.truth
    ended = sum(truth["finished", reason] for reason in ("stop", "length", "error"))
    assert made.distribution(requests.DURATION) == (ended, truth["duration"])
    assert made.distribution(requests.TIME_TO_FIRST_TOKEN) == (truth["started"], truth["first"])
    assert made.distribution(requests.INTER_TOKEN_LATENCY) == (truth["betweens"], truth["between"])
    assert made.distribution(engine.STEP_INTERVAL) == (truth["intervals"], pytest.approx(truth["interval"], rel=1e-6))
    steps = truth["steps", "0"] + truth["steps", "1"]
    assert made.distribution(engine.STEP_PROCESSING) == (steps, steps / 1024)
    convention = made.aggregator.store[gen_ai.GEN_AI_DURATION].cells
    assert sum(sum(cell.counts) for cell in convention.values() if isinstance(cell, HistogramCell)) == ended


def test_nothing_grows_after_a_while(year: Lived) -> None:
    _, held = year
    (series, objects, size), _, (last_series, last_objects, last_size) = held
    assert series > 200
    assert last_series <= series
    assert objects > 5000
    assert last_objects <= objects * 1.01
    assert last_size <= size * 1.01


def test_nothing_was_rejected_or_failed(year: Lived) -> None:
    made, _ = year
    assert not made.aggregator.store.rejects
    assert (
        sum(
            cell.value
            for cell in made.aggregator.store[self_metrics.ERRORS].cells.values()
            if isinstance(cell, NumberCell)
        )
        == 0
    )


def test_engines_that_are_gone_have_no_gauges(year: Lived) -> None:
    made, _ = year
    assert made.lives > made.days / 13
    assert made.number(engine.UP, MODEL, "0") == 0
    for metric in (engine.RUNNING, cache.LORA_REQUESTS, engine.IMBALANCE, engine.SATURATION, cache.FREE_SEQUENCES):
        assert not made.aggregator.store[metric].cells, metric.name
