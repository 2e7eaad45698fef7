"""The thread that turns vLLM's queued stats into records, off the serving path."""

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
from vllm_vitals.ingest.detach_monitor import DetachMonitor
from vllm_vitals.ingest.step_queue import StepQueue
from vllm_vitals.records.step import Gone, Health, Record, Rejection, Sleep, Step

BATCH = 32
"""Steps that are read together. Reading many steps of one engine costs little more than reading one.

The batch is small enough that Python's garbage collector does not start because of vLLM's waiting objects: it would
stop the event loop as well.
"""
LATENCIES = 32768
"""Latencies after which a batch is read as well, while they are in the processor's cache."""
MIN_WAIT_SECONDS = 0.02
"""Minimum time between two looks at the queues, unless the drain interval is shorter."""

CHECK_SECONDS = 1.0
"""Maximum time between two checks whether an `AsyncLLM` has ended."""
DEAD_SECONDS = 30.0
"""Time without a drain after which the thread counts as dead."""
HOOK_SECONDS = 0.05
"""Allowance for a hook between reading the clock and queueing its call."""
WARN_SECONDS = 60.0
"""Time between two warnings about dropped steps."""
MAX_VALUE_LENGTH = 200
"""Characters of a vLLM value in a log line."""

Read = Callable[[list[Any], float], Sequence[Record]]
"""Returns the records of calls, and empties the list of calls. Second argument: Unix seconds at monotonic 0."""


class Sink(Protocol):
    """Where records go: the aggregator of this process, or a client of another process."""

    def add(self, records: Sequence[Record]) -> None:
        """Take records, oldest first."""

    def flush(self, until: float) -> None:
        """Set the watermark: all records up to `until`, monotonic seconds, have been added."""


@dataclass(eq=False)
class Source:
    """A queue, the reader of its calls, and the engines that it belongs to."""

    queue: StepQueue
    read: Read
    model: str = ""
    engines: Sequence[str] = ()
    over: Callable[[], bool] = lambda: False
    """Returns whether its `AsyncLLM` has ended."""
    reported: tuple[int, int, float] = (0, 0, 0.0)
    """`dropped`, `failed` and `hook_time` of the queue at the last report."""
    rejected: dict[str, int] = field(default_factory=dict)
    sleep: str | None = None
    records: list[Record] = field(default_factory=list)
    """Records that the sink does not have yet."""


class StepDrainer:
    """Drains every queue of this process into one sink, a little at a time."""

    def __init__(
        self, sink: Sink, interval: float, process: str = "0", generated: Callable[[], float] = lambda: 0.0
    ) -> None:
        """`interval`: seconds between two drains. Queues that fill up are read earlier. `process`: label of this process.

        `generated` returns the tokens that vLLM itself has counted in this process.
        """
        self._monitor = DetachMonitor(generated)
        self._process = process
        self._sink = sink
        self._interval = interval
        self._sources: list[Source] = []
        self._errors: Counter[str] = Counter()
        self._draining = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._warned = -WARN_SECONDS
        self.drained = time.monotonic()
        """Monotonic seconds of the latest finished drain."""

    def attach(self, source: Source) -> None:
        """Drain one more queue. The first one starts the thread."""
        self._sources.append(source)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="vitals-drainer", daemon=True)
            self._thread.start()

    def complain(self, field: str, value: Any, expected: str) -> None:
        """Count a vLLM value that cannot be used, and log each field once."""
        self._errors["read"] += 1
        complain(field, value, expected)

    def problem(self) -> str:
        """Return why steps are not read; `""` if they are."""
        if self._thread is None or not self._thread.is_alive():
            return "the thread that reads steps has ended"
        silent = time.monotonic() - self.drained
        return f"no steps have been read for {silent:.0f} s" if silent >= DEAD_SECONDS else ""

    @paced()
    def drain(self) -> None:
        """Read all waiting calls and send their records to the sink."""
        begun = time.monotonic()
        with self._draining:
            for source in list(self._sources):
                if source.over():  # no call comes after this
                    source.queue.orphaned = True
                self._read_waiting(source)
                records, source.records = source.records, []
                self._sink.add(records)
                let_go(records)
                self._sink.add(list(_events(source)))
                if source.queue.orphaned and not source.queue.calls:
                    self._let_go(source)
            self._report()
            self._sink.flush(begun - HOOK_SECONDS)
            self.drained = time.monotonic()

    @paced()
    def _gather(self) -> float:
        """Read full batches before the next drain is due. Return how full the queues were: 1 is one batch."""
        with self._draining:
            return sum(map(self._read_waiting, list(self._sources)))

    def _let_go(self, source: Source) -> None:
        """Remove a queue. Its engines are gone unless another queue serves them."""
        self._report()
        source.queue.close()
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
        """Drop everything in the child of a fork, without touching a thread or a lock."""
        for source in self._sources:
            source.queue.close()

    def _run(self) -> None:
        stopped, wait, due = False, min(self._interval, CHECK_SECONDS), time.monotonic() + self._interval
        while not stopped:
            stopped, filled = self._stopped.wait(wait), 1.0
            drains = stopped or time.monotonic() >= due
            if drains:  # also if it fails: the next one is due in its time
                due = time.monotonic() + self._interval
            try:
                filled = self._gather()
                if drains or any(source.over() for source in list(self._sources)):
                    self.drain()
            except Exception:  # noqa: BLE001 - the thread must go on
                self._errors["read"] += 1
                log_once(logging.ERROR, "A drain failed; the next one goes on", traceback=True)
            wait = min(due - time.monotonic(), wait / max(filled, 1e-3), CHECK_SECONDS)
            wait = max(min(MIN_WAIT_SECONDS, self._interval), wait)

    def _read_waiting(self, source: Source) -> float:
        """Read all calls of a queue and return how many batches they were."""
        waiting, known = len(source.queue.calls), len(source.records)
        for first in range(0, waiting, BATCH):
            source.records += self._read(source, min(waiting - first, BATCH))
        latencies = sum(map(_latencies, source.records[known:]))
        return max(waiting / BATCH, latencies / LATENCIES)

    def _read(self, source: Source, count: int) -> Sequence[Record]:
        """Read `count` calls of a queue."""
        calls = [source.queue.calls.popleft() for _ in range(count)]
        try:
            return source.read(calls, epoch())
        except BaseException:  # noqa: BLE001 - vLLM's objects may raise anything; later steps count again
            self._errors["read"] += count
            log_once(logging.ERROR, "%d steps could not be read and are left out", count, key="read", traceback=True)
            return []

    def _report(self) -> None:
        """Send the sink what was dropped and went wrong since the last report."""
        health = Health(process=self._process)
        for source in self._sources:
            queue = source.queue
            dropped, failed, hook_time = source.reported
            source.reported = (queue.dropped, queue.failed, queue.hook_time)
            health.dropped += source.reported[0] - dropped
            health.hook_time += source.reported[2] - hook_time
            self._errors["hook"] += source.reported[1] - failed
        health.detached = self._monitor.check(lambda: sum(source.queue.hook_time for source in self._sources))
        health.errors = {stage: count for stage, count in self._errors.items() if count}
        self._errors.clear()
        if health.dropped and time.monotonic() - self._warned > WARN_SECONDS:
            self._warned = time.monotonic()
            LOGGER.warning(
                "Steps come faster than they can be read: %d were dropped (vitals.steps.dropped)", health.dropped
            )
        if health != Health(process=self._process):
            self._sink.add([health])


def _events(source: Source) -> Iterator[Record]:
    """Yield rejections and changes of the sleep state since the last drain."""
    for reason, count in list(source.queue.rejections.items()):
        new = count - source.rejected.get(reason, 0)
        if new:
            source.rejected[reason] = count
            yield Rejection(source.model, reason, new)
    state = source.queue.sleep
    if state != source.sleep and state is not None:
        source.sleep = state
        yield from (Sleep(source.model, engine, state, time.monotonic()) for engine in source.engines)


def _latencies(record: Record) -> int:
    """Return about how many latencies a record has."""
    return len(record.inter_token_latencies or ()) * record.inter_token_repeats if isinstance(record, Step) else 0


def complain(field: str, value: Any, expected: str) -> None:
    """Log once that a vLLM value cannot be used."""
    message = "vLLM gave %s = %s, expected %s; it is left out"
    log_once(logging.WARNING, message, field, _shown(value), expected, key=field)


def _shown(value: Any) -> str:
    try:
        return shown(value, MAX_VALUE_LENGTH)
    except Exception:  # noqa: BLE001 - a container of vLLM's may raise while it is read
        return f"<{type(value).__name__} that cannot be shown>"
