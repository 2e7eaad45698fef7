"""Who hung up, as several API servers tell it: each hears of a step in its own time and tells of it in its own time."""

import random
import sys
from collections import defaultdict
from collections.abc import Iterator

import pytest

from tests.unit.builders import AGE, EPOCH, MODEL, Clock
from vllm_vitals.aggregation import merge
from vllm_vitals.aggregation.aggregator import Aggregator
from vllm_vitals.aggregation.merge import AWAKE, LONGEST_HOLD, Merger
from vllm_vitals.catalog.requests import ABANDONED
from vllm_vitals.config.settings import Settings
from vllm_vitals.engine.abandoned import MAX_SERVER_SKEW
from vllm_vitals.records.step import Facts, Finished, Floats, Gap, Health, Record, Step
from vllm_vitals.store.series import NumberCell

SETTLED = 2 * MAX_SERVER_SKEW + AWAKE
"""Seconds of silence, heard from all of them, after which the count is exact."""
INTERVAL = 0.25
"""Seconds between two times that a server tells what it has."""


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in (merge, sys.modules[Aggregator.__module__]):
        monkeypatch.setattr(module, "time", made)
    return made


def heard(clock: float, running: int | None = None, *, started: int = 0, ended: int = 0) -> Step:
    """Return what a server heard of a step: the number of running requests comes to one of them."""
    firsts = Floats("d", [0.1] * started) if started else None
    over = tuple(Finished("stop", output_tokens=5) for _ in range(ended))
    return Step(MODEL, "0", EPOCH + clock, clock, AGE, running=running, first_token_latencies=firsts, finished=over)


class Servers:
    """Some API servers before an aggregator, on a clock that is turned."""

    def __init__(self, clock: Clock, *names: str) -> None:
        self.clock = clock
        self.names: list[str] = []
        self.aggregator = Aggregator(Settings())
        self.merger = Merger(self.aggregator)
        for name in names:
            self.join(name)

    def join(self, name: str) -> None:
        self.names.append(name)
        self.merger.take(name, [Facts(MODEL, "0", max_num_seqs=8)], 0.0)

    def leave(self, name: str) -> None:
        self.names.remove(name)
        self.merger.leave(name)

    def tell(self, name: str, *records: Record) -> None:
        """Let a server tell something, which is all that it has heard."""
        self.merger.take(name, records, self.clock.now)

    def turn(self, seconds: float, *names: str) -> None:
        """Let time pass in which some servers, or all, have nothing new to tell."""
        for _ in range(round(seconds / INTERVAL)):
            self.clock.now += INTERVAL
            for name in names or self.names:
                self.tell(name)

    @property
    def counted(self) -> float:
        cell = self.aggregator.store[ABANDONED].cells.get((MODEL, "0"))
        return cell.value if isinstance(cell, NumberCell) else 0.0


def test_an_end_reported_late_by_one_server_is_not_abandonment(clock: Clock) -> None:
    both = Servers(clock, "a", "b")
    both.tell("b", heard(99.9, 1, started=1))
    both.tell("a", heard(100.0, 0))
    both.turn(LONGEST_HOLD + 10, "a")  # `b` is cut off
    assert both.counted == 0
    both.tell("b", heard(99.95, ended=1))
    both.turn(10)
    assert both.counted == 0


def test_abandoned_requests_count_once_the_late_server_has_caught_up(clock: Clock) -> None:
    both = Servers(clock, "a", "b")
    both.tell("b", heard(99.9, 2, started=2))
    both.turn(20, "a")
    both.tell("a", heard(119.9, 0))
    both.turn(20, "a")
    assert both.counted == 0
    both.tell("b", heard(110.0, 1, ended=1))
    both.turn(SETTLED)
    assert both.counted == 1


def test_a_resumed_server_has_a_second_to_catch_up(clock: Clock) -> None:
    both = Servers(clock, "a", "b")
    both.tell("b", heard(99.9, 1, started=1))
    both.tell("a", heard(100.0, 0))
    both.turn(30, "a")  # `b` is stopped, and the end of its request waits for it
    both.tell("b")  # its feeder was faster than its event loop
    both.turn(0.5)
    both.tell("b", heard(clock.now, ended=1))
    both.turn(10)
    assert both.counted == 0


def test_ends_in_dropped_steps_are_not_abandonment(clock: Clock) -> None:
    both = Servers(clock, "a", "b")
    both.tell("b", heard(99.9, 2, started=2))
    both.tell("a", heard(100.0, 0))
    both.turn(10, "a")
    both.tell("b", Gap(), heard(109.0, started=1))
    both.turn(3)
    both.tell("b", Health(dropped=7, process="1"), heard(clock.now, 0, ended=1))
    both.turn(10)
    assert both.counted == 0
    both.tell("b", heard(clock.now, 1, started=1))
    both.turn(1)
    both.tell("a", heard(clock.now, 0))
    both.turn(SETTLED)
    assert both.counted == 1


def test_steps_dropped_before_the_drain_are_not_abandonment(clock: Clock) -> None:
    one = Servers(clock, "a")
    one.tell("a", heard(99.0, 2, started=2))
    one.tell("a", heard(99.9, 0), Health(dropped=1))
    one.turn(10)
    assert one.counted == 0


def test_requests_of_a_killed_server_are_not_abandoned(clock: Clock) -> None:
    both = Servers(clock, "a", "b")
    both.tell("b", heard(99.9, 2, started=2))
    both.turn(1)
    both.leave("b")  # without having told that they ended
    both.tell("a", heard(clock.now, 0))
    both.turn(10)
    assert both.counted == 0
    both.tell("a", heard(clock.now, 1, started=1))
    both.turn(1)
    both.tell("a", heard(clock.now, 0))
    both.turn(1)
    assert both.counted == 1


def test_a_joining_server_with_requests_hides_no_abandonment_for_long(clock: Clock) -> None:
    both = Servers(clock, "a")
    both.tell("a", heard(99.9, 0))
    both.turn(1)
    both.join("b")
    both.tell("b", heard(clock.now, 0, ended=2))
    both.turn(SETTLED)
    both.tell("b", heard(clock.now, 1, started=1))
    both.turn(1)
    both.tell("a", heard(clock.now, 0))
    both.turn(SETTLED)
    assert both.counted == 1


def test_a_stuck_server_of_another_engine_holds_nothing_up(clock: Clock) -> None:
    both = Servers(clock, "a")
    both.merger.take("b", [Facts(MODEL, "1", max_num_seqs=8)], 50.0)
    both.tell("a", heard(99.0, 1, started=1), heard(99.9, 0))
    both.turn(2, "a")
    assert both.counted == 1


class Life:
    """An engine with several servers, what really happens, and what the servers hear and tell of it."""

    def __init__(self, clock: Clock, seed: int) -> None:
        self.chance = random.Random(seed)
        names = ("a", "b", "c")[: self.chance.randint(1, 3)]
        self.servers = Servers(clock, *names)
        self.clock = clock
        self.held: dict[str, int] = dict.fromkeys(names, 0)
        """Requests of each server in the engine."""
        self.left = 0
        self._lag = {name: self.chance.choice([0.0, 0.0, 0.02, 0.3, 0.7]) for name in names}
        self._inbox: dict[str, list[Step]] = defaultdict(list)
        self._mute: dict[str, float] = {}
        """Until when a server tells nothing."""
        self._stopped: dict[str, float] = {}
        """Until when a server hears and tells nothing."""

    def step(self, *, last: bool = False) -> None:
        """Let the engine make a step: each server hears of its own requests, and the first one of the engine too."""
        chance, now, outputs = self.chance, self.clock.now, dict[str, tuple[int, int]]()
        for name in self.held:
            started = 0 if last else chance.choice([0, 0, 1, 2])
            self.held[name] += started
            left = chance.randint(0, self.held[name]) if chance.random() < 0.1 else 0
            rest = self.held[name] - left
            ended = rest if last else chance.randint(0, rest) if chance.random() < 0.5 else 0
            self.left += left
            self.held[name] -= left + ended
            if started or ended or self.held[name]:
                outputs[name] = (started, ended)
        outputs = outputs or {"a": (0, 0)}
        first = next(iter(outputs))
        for name, (started, ended) in outputs.items():
            running = sum(self.held.values()) if name == first else None
            at = max(now, self._stopped.get(name, 0.0)) + self._lag[name] * chance.random()
            at = max(at, max((each.clock for each in self._inbox[name]), default=0.0))
            self._inbox[name].append(heard(at, running, started=started, ended=ended))

    def tell(self, *, all_of_it: bool = False) -> None:
        """Let the servers tell what they have heard up to now, each in its turn and some not at all."""
        now = self.clock.now
        for name in self.chance.sample(list(self.held), len(self.held)):
            if all_of_it or now >= max(self._mute.get(name, 0.0), self._stopped.get(name, 0.0)):
                known = [each for each in self._inbox[name] if each.clock <= now]
                self._inbox[name] = self._inbox[name][len(known) :]
                self.servers.tell(name, *known)

    def hold_up(self) -> None:
        """Cut a server off for a while, or stop it, in which it hears nothing either."""
        name = self.chance.choice(list(self.held))
        where = self._mute if self.chance.random() < 0.5 else self._stopped
        where[name] = self.clock.now + self.chance.uniform(0.5, 8.0)

    def live(self, steps: int) -> Iterator[None]:
        """Go on for so many steps, and let all be told to the end."""
        due = self.clock.now
        for number in range(steps):
            self.clock.now += self.chance.choice([0.005, 0.02, 0.1, 0.4])
            if number == steps - 1:  # all have heard of the steps before, so that this one is the latest by any clock
                self.clock.now += 10
            elif self.chance.random() < 0.02:
                self.hold_up()
            self.step(last=number == steps - 1)
            if self.clock.now >= due:
                due = self.clock.now + INTERVAL
                self.tell()
                yield
        for _ in range(80):
            self.clock.now += INTERVAL
            self.tell()
            yield


def test_it_is_never_too_high_and_exact_whenever_the_engine_is_idle(clock: Clock, effort: str) -> None:
    for chance in range(10 if effort == "test" else 100):
        live(clock, chance)


def live(clock: Clock, seed: int) -> None:
    """Go through one life, which is told by its number."""
    life = Life(clock, seed)
    for _ in range(4):
        for _ in life.live(150):
            assert life.servers.counted <= life.left, seed
        assert sum(life.held.values()) == 0
        assert life.servers.counted == life.left, seed
