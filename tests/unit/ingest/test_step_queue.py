"""What the hooks leave for the feeder: bounded, and nothing else happens within them."""

from typing import Any

import pytest

from vllm_vitals.ingest.step_queue import Tap


def record(tap: Tap, *numbers: int) -> None:
    for number in numbers:
        tap.record(number, None, None, 0)


def schedulers(tap: Tap) -> list[Any]:
    return [scheduler for _, scheduler, *_ in tap.queue]


def test_what_does_not_fit_is_dropped_and_counted() -> None:
    tap = Tap(3)
    record(tap, *range(5))
    assert (schedulers(tap), tap.dropped) == ([0, 1, 2], 2)


def test_the_time_within_the_hook_is_counted() -> None:
    tap = Tap(3)
    record(tap, 0)
    once = tap.hook_time
    record(tap, *range(100))
    assert tap.hook_time > once > 0


def test_a_closed_tap_keeps_nothing_and_drops_nothing() -> None:
    tap = Tap(3)
    record(tap, 0)
    tap.close()
    record(tap, 1)
    assert (schedulers(tap), tap.dropped) == ([], 0)


@pytest.mark.parametrize("error", [RuntimeError, RecursionError, MemoryError, SystemExit])
def test_a_call_that_cannot_be_copied_is_kept_as_it_is(error: type[BaseException]) -> None:
    def copy(call: Any) -> Any:
        if call[1] == "odd":
            raise error
        return ("copy", *call[1:])

    tap = Tap(3, copy)
    tap.record("odd", None, None, 0)
    tap.record("plain", None, None, 0)
    (kept, scheduler, *_), (copied, *_) = tap.queue
    assert (scheduler, copied, tap.failed) == ("odd", "copy", 0)
    assert isinstance(kept, float)
