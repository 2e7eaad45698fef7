"""Records of several serving processes made into one: in order of time, and each thing said once."""

import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

import msgspec

from vllm_vitals._util.pacing import paced
from vllm_vitals.aggregation.aggregator import Aggregator, EngineKey
from vllm_vitals.engine.abandoned import MAX_SERVER_SKEW
from vllm_vitals.records.step import Facts, Gap, Gone, Record, Sleep, Step

LONGEST_HOLD = 1.0
"""Seconds that steps wait for a process that is behind: gauges shall be right within about that time."""

REST = 0.25
"""Seconds between two times that steps are added up, where nobody serves: what comes meanwhile is added up together."""

AHEAD = 1.0
"""Seconds by which a step may be ahead of this process's clock, which is the same for all of a host: none is."""

AWAKE = 1.0
"""Seconds after which a process has heard all that waited for it, had it been stopped before."""


@dataclass(eq=False)
class Member:
    """What one process has told."""

    until: float = 0.0
    """Monotonic seconds, on the clock that all processes of a host share, up to which it has told everything."""
    engines: set[EngineKey] = field(default_factory=set)
    _times: deque[float] = field(default_factory=deque)
    """The latest `until`s, back to the first that it was awake after."""

    def tell(self, until: float) -> None:
        """Take note that it has told everything up to `until`."""
        if until > self.until:
            self.until = until
            self._times.append(until)
            while len(self._times) > 1 and self._times[1] <= until - AWAKE:
                self._times.popleft()

    @property
    def certain(self) -> float:
        """Return up to when it has told all that there was to hear, whether it was stopped meanwhile or not.

        A process that goes on after a stop may say that it has told all before it has heard of what happened.
        """
        return self._times[0] if self._times and self._times[0] <= self.until - AWAKE else -math.inf


class Merger:
    """Takes what each process tells and hands it to the collector as if one had told it all.

    The scheduler stats of each step reach exactly one of an engine's processes, so that together they are whole.
    """

    def __init__(self, aggregator: Aggregator, *, serves: bool = True) -> None:
        """Begin with nothing; `serves`: requests are served in this process.

        Where none are, nobody waits for the interpreter, and more is added up at a time, which costs half.
        """
        self._aggregator = aggregator
        self._serves = serves
        self._released = 0.0
        self._lock = threading.Lock()
        self._members: dict[str, Member] = {}
        self._facts: dict[EngineKey, Facts] = {}
        self._slept: dict[EngineKey, float] = {}
        """When each engine was last said to be in a state, monotonic seconds."""
        self._held: list[tuple[float, int, Step]] = []
        self._serial = itertools.count()

    def take(self, process: str, records: Sequence[Record], until: float) -> None:
        """Take what a process tells, oldest first: all that it knows up to `until`, monotonic seconds."""
        with self._lock, paced(self._serves):
            member = self._members.setdefault(process, Member())
            member.tell(until)
            latest = time.monotonic() + AHEAD
            passed = [record for record in records if self._passes(record, member, latest)]
            if any(isinstance(record, Gone) for record in passed):
                self._release(until=math.inf)  # what an engine did before it went
            self._aggregator.add(passed)
            if self._serves or time.monotonic() - self._released >= REST:
                self._release()

    def leave(self, process: str) -> None:
        """Forget a process; engines that no other has are gone."""
        with self._lock, paced(self._serves):
            member = self._members.pop(process, Member())
            gone = [Gone(*key) for key in sorted(member.engines) if self._is_gone(key)]
            self._aggregator.lose(member.engines, time.monotonic())
            self._release(until=math.inf if gone else 0.0)  # what an engine did before it went
            self._aggregator.add(gone)

    def settle(self) -> None:
        """Hand on what nobody has to be waited for any more."""
        with self._lock, paced(self._serves):
            self._release()

    def finish(self) -> None:
        """Hand on what waits for others: nobody will be heard any more."""
        with self._lock, paced(self._serves):
            self._release(until=math.inf)

    def _passes(self, record: Record, member: Member, latest: float) -> bool:
        """Tell whether a record goes to the collector at once; `latest`: no clock that makes sense is beyond it."""
        if isinstance(record, Step):
            if not record.clock <= latest:  # it would hold itself, and what is not a number all others, for good
                record.clock = latest
            heappush(self._held, (record.clock, next(self._serial), record))
            return False
        if isinstance(record, Facts):
            return self._is_news(record, member)
        if isinstance(record, Sleep):
            return self._is_newest(record, latest)
        if isinstance(record, Gap):
            self._aggregator.lose(member.engines, time.monotonic())
            return False
        if isinstance(record, Gone):
            member.engines.discard((record.model, record.engine))
            return self._is_gone((record.model, record.engine))
        return True

    def _is_newest(self, sleep: Sleep, latest: float) -> bool:
        """Tell whether no later state of its engine is known, and this one is not of the future."""
        key = (sleep.model, sleep.engine)
        newest = self._slept.get(key, 0.0) <= sleep.clock <= latest
        if newest:
            self._slept[key] = sleep.clock
        return newest

    def _is_news(self, facts: Facts, member: Member) -> bool:
        """Tell whether facts are not those that another process of the engine has told."""
        key = (facts.model, facts.engine)
        if key not in member.engines:
            member.engines.add(key)
            self._aggregator.meet(key)
        known, self._facts[key] = self._facts.get(key), facts
        return known is None or _without_startup(known) != _without_startup(facts)

    def _is_gone(self, key: EngineKey) -> bool:
        if any(key in member.engines for member in self._members.values()):
            return False
        self._slept.pop(key, None)
        return self._facts.pop(key, None) is not None

    def _release(self, until: float = 0.0) -> None:
        """Hand the steps on before which none can come any more, and those up to `until`."""
        told = min((member.until for member in self._members.values()), default=math.inf)
        horizon = max(told, until, time.monotonic() - LONGEST_HOLD)
        steps = []
        while self._held and self._held[0][0] <= horizon:
            steps.append(heappop(self._held)[2])
        self._released = time.monotonic()
        self._aggregator.add(steps)
        self._aggregator.flush(min(horizon, time.monotonic()), self._certain)

    def _certain(self, key: EngineKey) -> tuple[float, float]:
        """Return up to when nothing is missing of an engine, and how much its processes may differ: see `flush`."""
        members = [member for member in self._members.values() if key in member.engines]
        if len(members) == 1:
            return members[0].until, 0.0
        return min((member.certain for member in members), default=-math.inf), MAX_SERVER_SKEW


def _without_startup(facts: Facts) -> Facts:
    return msgspec.structs.replace(facts, startup=None)
