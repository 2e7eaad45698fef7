"""The feeder reads queues as they fill, and tells the sink at the drain."""

import threading
import time
from collections.abc import Sequence
from typing import Any

from vllm_vitals._util.pacing import checkpoint
from vllm_vitals.ingest.step_drainer import BATCH, LATENCIES, Source, StepDrainer
from vllm_vitals.ingest.step_queue import StepQueue
from vllm_vitals.records.step import Floats, Record, Step


class Sink:
    """Keeps what it is told, and says when it was told so many steps."""

    def __init__(self, expected: int = 0) -> None:
        self.clocks: list[float] = []
        self.until: list[float] = []
        self.complete = threading.Event()
        self._expected = expected

    def add(self, records: Sequence[Record]) -> None:
        self.clocks += [record.clock for record in records if isinstance(record, Step)]
        if len(self.clocks) >= self._expected:
            self.complete.set()

    def flush(self, until: float) -> None:
        self.until.append(until)


def read(calls: list[Any], epoch: float) -> list[Step]:
    checkpoint()
    return [Step("m", "0", epoch + clock, clock, 0.0) for clock, *_ in calls]


def feed(sink: Sink, queue: StepQueue) -> StepDrainer:
    made = StepDrainer(sink, 0.2)
    made._sources.append(Source(queue, read))
    return made


def record(queue: StepQueue, count: int) -> list[float]:
    for _ in range(count):
        queue.record(None, None, None, 0)
    return [clock for clock, *_ in queue.calls]


def test_what_was_read_is_told_at_the_drain_in_order() -> None:
    sink, queue = Sink(), StepQueue(1000)
    mine = feed(sink, queue)
    first = record(queue, BATCH + 3)
    assert mine._gather() == (BATCH + 3) / BATCH
    assert (len(queue.calls), sink.clocks, sink.until) == (0, [], [])
    second = record(queue, 2)
    mine.drain()
    assert sink.clocks == first + second
    mine.drain()
    assert sink.clocks == first + second
    assert len(sink.until) == 2


def test_long_lists_of_latencies_fill_it_as_many_steps_do() -> None:
    queue = StepQueue(1000)
    mine = StepDrainer(Sink(), 0.2)
    mine._sources.append(Source(queue, lambda calls, *_: [latencies(LATENCIES // 4) for _ in calls]))
    record(queue, 2)
    assert mine._gather() == 0.5


def latencies(count: int) -> Step:
    return Step("m", "0", 0.0, 0.0, 0.0, inter_token_latencies=Floats("d", bytes(8 * count)))


def test_the_thread_tells_all_there_was_when_it_is_stopped() -> None:
    sink, queue = Sink(expected=500), StepQueue(1000)
    mine = StepDrainer(sink, 0.01)
    mine.attach(Source(queue, read))
    for _ in range(500):
        queue.record(None, None, None, 0)
    assert sink.complete.wait(10)
    queue.record(None, None, None, 0)
    mine.stop(5)
    assert len(sink.clocks) == 501
    assert sink.clocks == sorted(sink.clocks)


def test_a_drain_that_fails_is_followed_by_the_next_in_its_time() -> None:
    class Failing(Sink):
        def flush(self, until: float) -> None:
            super().flush(until)
            raise RuntimeError

    sink = Failing()
    mine, begun = StepDrainer(sink, 0.1), time.monotonic()
    mine.attach(Source(StepQueue(10), read))
    threading.Event().wait(1.0)
    mine.stop(5)
    assert 1 <= len(sink.until) <= (time.monotonic() - begun) / 0.1 + 2  # not one after another
