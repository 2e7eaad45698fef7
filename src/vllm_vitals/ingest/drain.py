"""The feeder: a thread that turns what vLLM left in the taps into records, off the serving path."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from vllm_vitals._util.bounds import shown
from vllm_vitals._util.clock import epoch
from vllm_vitals._util.log import LOGGER, log_once
from vllm_vitals._util.pacing import let_go, paced
from vllm_vitals.ingest.detach_watch import Watch
from vllm_vitals.ingest.step_queue import Tap
from vllm_vitals.records.step import Gone, Health, Record, Rejection, Sleep, Step

BATCH = 32
"""Steps that are read together: of one engine they cost little more than one.

As many calls hold fewer objects of vLLM's than make Python's garbage collector look for rubbish among them, on
whichever thread it is, so that reading in time spares the event loop its pauses.
"""
NUMBERS = 32768
"""Latencies after which it is time to read as well: the collector looks at each, and they fall out of the cache."""
SHORTEST_WAIT = 0.02
"""Seconds between two looks at the taps at least, unless drains are to be more frequent."""

LOOK = 1.0
"""Seconds between two looks whether an `AsyncLLM` is no more, at most."""
SILENT = 30.0
"""Seconds without a drain after which the feeder counts as dead."""
UNDER_WAY = 0.05
"""Seconds that a hook may take from looking at the clock to leaving what it heard."""
COMPLAIN = 60.0
"""Seconds between two warnings of dropped steps."""
LONGEST_VALUE = 200
"""Characters of a value of vLLM's that are shown."""

Read = Callable[[list[Any], float], Sequence[Record]]
"""Takes, and empties, what a tap held, and Unix seconds at the monotonic clock's 0."""


class Sink(Protocol):
    """Where records go: the collector in this process, or the way to another."""

    def add(self, records: Sequence[Record]) -> None:
        """Take records, oldest first."""

    def flush(self, until: float) -> None:
        """Take note that all has been told up to `until`, monotonic seconds."""


@dataclass(eq=False)
class Source:
    """A tap, how what it holds is read, and whose it is."""

    tap: Tap
    read: Read
    model: str = ""
    engines: Sequence[str] = ()
    over: Callable[[], bool] = lambda: False
    """Tells whether nothing will be left in the tap any more."""
    told: tuple[int, int, float] = (0, 0, 0.0)
    """What the tap had dropped, failed at and spent at the last report."""
    rejected: dict[str, int] = field(default_factory=dict)
    sleep: str | None = None
    records: list[Record] = field(default_factory=list)
    """What was read and not told the sink yet."""


class Feed:
    """Drains every tap of this process into one sink, a little at a time."""

    def __init__(
        self, sink: Sink, interval: float, process: str = "0", generated: Callable[[], float] = lambda: 0.0
    ) -> None:
        """`interval`: seconds between two drains; taps are read between them as they fill. `process`: number of this process among its like.

        `generated` gives the tokens that vLLM itself has counted in this process.
        """
        self._watch = Watch(generated)
        self._process = process
        self._sink = sink
        self._interval = interval
        self._sources: list[Source] = []
        self._errors: Counter[str] = Counter()
        self._draining = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._complained = -COMPLAIN
        self.drained = time.monotonic()
        """Monotonic seconds of the latest finished drain."""

    def attach(self, source: Source) -> None:
        """Drain one more tap; the first one starts the thread."""
        self._sources.append(source)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="vitals-feeder", daemon=True)
            self._thread.start()

    def complain(self, field: str, value: Any, expected: str) -> None:
        """Count a vLLM value that could not be used; the log has each field once."""
        self._errors["read"] += 1
        complain(field, value, expected)

    def problem(self) -> str:
        """Return why steps are not taken in, `""` when they are."""
        if self._thread is None or not self._thread.is_alive():
            return "the feeder has ended"
        silent = time.monotonic() - self.drained
        return f"the feeder has not drained for {silent:.0f} s" if silent >= SILENT else ""

    @paced()
    def drain(self) -> None:
        """Take in everything that waits."""
        begun = time.monotonic()
        with self._draining:
            for source in list(self._sources):
                if source.over():  # what it has left by now is all
                    source.tap.orphaned = True
                self._read_waiting(source)
                records, source.records = source.records, []
                self._sink.add(records)
                let_go(records)
                self._sink.add(list(_events(source)))
                if source.tap.orphaned and not source.tap.queue:
                    self._let_go(source)
            self._report()
            self._sink.flush(begun - UNDER_WAY)
            self.drained = time.monotonic()

    @paced()
    def _gather(self) -> float:
        """Read what waits, to be added up at the next drain, and return how much it was: 1 is what is read together."""
        with self._draining:
            return sum(map(self._read_waiting, list(self._sources)))

    def _let_go(self, source: Source) -> None:
        """Forget a tap of which nothing will come; its engines are gone unless another has taken their place."""
        self._report()
        source.tap.close()
        self._sources.remove(source)
        served = {(other.model, engine) for other in self._sources for engine in other.engines}
        gone = [Gone(source.model, engine) for engine in source.engines if (source.model, engine) not in served]
        self._sink.add(gone)

    def stop(self, timeout: float = 1.0) -> None:
        """Drain once more and end the thread, in at most `timeout` seconds."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(timeout)

    def close(self) -> None:
        """Forget everything without touching a thread or a lock: this is the child of a fork."""
        for source in self._sources:
            source.tap.close()

    def _run(self) -> None:
        stopped, wait, due = False, min(self._interval, LOOK), time.monotonic() + self._interval
        while not stopped:
            stopped, filled = self._stopped.wait(wait), 1.0
            drains = stopped or time.monotonic() >= due
            if drains:  # also when it fails: the next one is due in its time
                due = time.monotonic() + self._interval
            try:
                filled = self._gather()
                if drains or any(source.over() for source in list(self._sources)):
                    self.drain()
            except Exception:  # noqa: BLE001 - the thread must go on
                self._errors["read"] += 1
                log_once(logging.ERROR, "A drain failed; the next one goes on", traceback=True)
            wait = min(due - time.monotonic(), wait / max(filled, 1e-3), LOOK)
            wait = max(min(SHORTEST_WAIT, self._interval), wait)

    def _read_waiting(self, source: Source) -> float:
        """Read what waits in a tap and return how much it was."""
        waiting, known = len(source.tap.queue), len(source.records)
        for first in range(0, waiting, BATCH):
            source.records += self._read(source, min(waiting - first, BATCH))
        numbers = sum(map(_numbers, source.records[known:]))
        return max(waiting / BATCH, numbers / NUMBERS)

    def _read(self, source: Source, count: int) -> Sequence[Record]:
        """Take so many calls from a tap and read them."""
        calls = [source.tap.queue.popleft() for _ in range(count)]
        try:
            return source.read(calls, epoch())
        except BaseException:  # noqa: BLE001 - an object of vLLM's may raise anything; the next steps count again
            self._errors["read"] += count
            log_once(logging.ERROR, "%d steps could not be read and are left out", count, key="read", traceback=True)
            return []

    def _report(self) -> None:
        """Tell the sink what the hooks and the feeder have been through since the last time."""
        health = Health(process=self._process)
        for source in self._sources:
            tap = source.tap
            dropped, failed, hook_time = source.told
            source.told = (tap.dropped, tap.failed, tap.hook_time)
            health.dropped += source.told[0] - dropped
            health.hook_time += source.told[2] - hook_time
            self._errors["hook"] += source.told[1] - failed
        health.detached = self._watch.look(lambda: sum(source.tap.hook_time for source in self._sources))
        health.errors = {stage: count for stage, count in self._errors.items() if count}
        self._errors.clear()
        if health.dropped and time.monotonic() - self._complained > COMPLAIN:
            self._complained = time.monotonic()
            LOGGER.warning("The feeder cannot keep up: %d steps were dropped (vitals.steps.dropped)", health.dropped)
        if health != Health(process=self._process):
            self._sink.add([health])


def _events(source: Source) -> Iterator[Record]:
    """Yield what the tap heard beside steps since the last time."""
    for reason, count in list(source.tap.rejections.items()):
        new = count - source.rejected.get(reason, 0)
        if new:
            source.rejected[reason] = count
            yield Rejection(source.model, reason, new)
    state = source.tap.sleep
    if state != source.sleep and state is not None:
        source.sleep = state
        yield from (Sleep(source.model, engine, state, time.monotonic()) for engine in source.engines)


def _numbers(record: Record) -> int:
    """Return how many latencies a record holds, about."""
    return len(record.inter_token_latencies or ()) * record.inter_token_repeats if isinstance(record, Step) else 0


def complain(field: str, value: Any, expected: str) -> None:
    """Say once that a value of vLLM's could not be used."""
    message = "vLLM gave %s = %s, expected %s; it is left out"
    log_once(logging.WARNING, message, field, _shown(value), expected, key=field)


def _shown(value: Any) -> str:
    try:
        return shown(value, LONGEST_VALUE)
    except Exception:  # noqa: BLE001 - a container of vLLM's may raise while it is walked
        return f"<{type(value).__name__} that cannot be shown>"
