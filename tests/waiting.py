"""Waiting for what must come, for as long as a busy machine may take."""

import time
from collections.abc import Callable
from typing import Any

PATIENCE = 60.0
"""Seconds for what takes milliseconds on a machine that is not overloaded."""


def wait_until(
    true: Callable[[], Any],
    seconds: float = PATIENCE,
    what: Callable[[], object] = lambda: "it did not come true in time",
) -> None:
    """Return once a condition is true; fail after so many seconds, with what there is then."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, what()
        time.sleep(0.01)
