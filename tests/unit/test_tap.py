"""What the hooks leave for the feeder: bounded, and nothing else happens within them."""

from typing import Any

from vllm_vitals.feed.tap import Tap


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
