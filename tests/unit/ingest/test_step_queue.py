"""What the hooks leave for the feeder: bounded, and nothing else happens within them."""

from typing import Any

import pytest

from vllm_vitals.ingest.step_queue import StepQueue


def record(queue: StepQueue, *numbers: int) -> None:
    for number in numbers:
        queue.record(number, None, None, 0)


def schedulers(queue: StepQueue) -> list[Any]:
    return [scheduler for _, scheduler, *_ in queue.calls]


def test_what_does_not_fit_is_dropped_and_counted() -> None:
    queue = StepQueue(3)
    record(queue, *range(5))
    assert (schedulers(queue), queue.dropped) == ([0, 1, 2], 2)


def test_the_time_within_the_hook_is_counted() -> None:
    queue = StepQueue(3)
    record(queue, 0)
    once = queue.hook_time
    record(queue, *range(100))
    assert queue.hook_time > once > 0


def test_a_closed_tap_keeps_nothing_and_drops_nothing() -> None:
    queue = StepQueue(3)
    record(queue, 0)
    queue.close()
    record(queue, 1)
    assert (schedulers(queue), queue.dropped) == ([], 0)


@pytest.mark.parametrize("error", [RuntimeError, RecursionError, MemoryError, SystemExit])
def test_a_call_that_cannot_be_copied_is_kept_as_it_is(error: type[BaseException]) -> None:
    def copy(call: Any) -> Any:
        if call[1] == "odd":
            raise error
        return ("copy", *call[1:])

    queue = StepQueue(3, copy)
    queue.record("odd", None, None, 0)
    queue.record("plain", None, None, 0)
    (kept, scheduler, *_), (copied, *_) = queue.calls
    assert (scheduler, copied, queue.failed) == ("odd", "copy", 0)
    assert isinstance(kept, float)
