"""What the hooks leave for the feeder: bounded, and packed on the event loop while it is fresh."""

import asyncio
from typing import Any

from vllm_vitals.feed.tap import PACK, Call, Tap


def mark(call: Call) -> Call:
    """Stand in for packing: the scheduler's stats are replaced once."""
    clock, scheduler, *rest = call
    return (clock, f"packed {scheduler}", *rest) if type(scheduler) is int else call  # type: ignore[return-value]


def record(tap: Tap, *numbers: int) -> None:
    for number in numbers:
        tap.record(number, None, None, 0)


def schedulers(tap: Tap) -> list[Any]:
    return [scheduler for _, scheduler, *_ in tap.queue]


async def serve(tap: Tap, count: int) -> list[Any]:
    """Record on an event loop, and look once it has done what was due."""
    record(tap, *range(count))
    before = schedulers(tap)
    await asyncio.sleep(0)
    assert before == list(range(count))  # nothing happens within the hook
    return schedulers(tap)


def test_calls_are_packed_once_enough_are_there() -> None:
    packed = [f"packed {number}" for number in range(PACK)]
    assert asyncio.run(serve(Tap(100, mark), PACK - 1)) == list(range(PACK - 1))
    assert asyncio.run(serve(Tap(100, mark), PACK)) == packed
    assert asyncio.run(serve(Tap(100, mark), PACK + 1))[-PACK:] == [*(f"packed {n}" for n in range(1, PACK + 1))]


def test_without_an_event_loop_they_stay_as_they_are() -> None:
    tap = Tap(100, mark)
    record(tap, *range(3 * PACK))
    assert schedulers(tap) == list(range(3 * PACK))


def test_what_the_feeder_has_taken_meanwhile_is_no_matter() -> None:
    async def taken() -> list[Any]:
        tap = Tap(100, mark)
        record(tap, *range(PACK))
        for _ in range(PACK - 2):
            tap.queue.popleft()
        await asyncio.sleep(0)
        return schedulers(tap)

    assert asyncio.run(taken()) == [f"packed {number}" for number in (PACK - 2, PACK - 1)]


def test_what_does_not_fit_is_dropped_and_counted() -> None:
    tap = Tap(3, mark)
    record(tap, *range(5))
    assert (schedulers(tap), tap.dropped) == ([0, 1, 2], 2)


def test_the_time_of_packing_counts_as_ours() -> None:
    async def spent() -> tuple[float, float]:
        tap = Tap(100, lambda call: (sum(range(20000)), call)[1])
        record(tap, *range(PACK))
        before = tap.hook_time
        await asyncio.sleep(0)
        return before, tap.hook_time

    before, after = asyncio.run(spent())
    assert after > before


def test_a_closed_tap_keeps_and_packs_nothing() -> None:
    async def closed() -> list[Any]:
        tap = Tap(100, mark)
        record(tap, *range(PACK))
        tap.close()
        await asyncio.sleep(0)
        record(tap, *range(PACK))
        return schedulers(tap)

    assert asyncio.run(closed()) == []
