"""What the hooks leave for the feeder: bounded, and nothing else happens within them."""

from types import SimpleNamespace
from typing import Any

import pytest

from vllm_vitals.ingest.step_queue import Tap
from vllm_vitals.vllm.told import write


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
def test_what_cannot_be_written_down_is_kept_as_it_is(error: type[BaseException]) -> None:
    class Stats:
        @property
        def __dict__(self) -> Any:  # type: ignore[override]
            raise error

    tap, stats = Tap(3, write), Stats()
    tap.record(stats, None, None, 0)
    tap.record(SimpleNamespace(num_running_reqs=1), None, None, 0)
    (_, kept, *_), (_, written) = tap.queue
    assert kept is stats
    assert isinstance(written, bytes)
