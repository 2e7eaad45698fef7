"""Detects that vLLM dropped this plugin: it does so, without a message, when it scales its engines up."""

import time
from collections.abc import Callable

from vllm_vitals._util.log import LOGGER

CHECK_SECONDS = 10.0
"""Time between two checks."""


class DetachMonitor:
    """Compares the tokens that vLLM counts with the calls of our hooks."""

    def __init__(self, generated: Callable[[], float]) -> None:
        """Begin to watch; `generated` returns the tokens that vLLM itself has counted in this process."""
        self._generated = generated
        self._checked = time.monotonic()
        self._before: tuple[float, float] | None = None
        self._detached = False

    def check(self, hooks: Callable[[], float]) -> bool | None:
        """Return whether vLLM works without calling this plugin; `None` if that did not change.

        `hooks` returns the total seconds of all our hooks, which grows with every call.
        """
        now = time.monotonic()
        if now - self._checked < CHECK_SECONDS:
            return None
        self._checked = now
        tokens, before = self._generated(), self._before
        spent = hooks()  # after the tokens: vLLM calls the hooks before it counts
        self._before = (tokens, spent)
        if before is None:
            return None
        detached = spent == before[1] and (tokens > before[0] or self._detached)
        if detached == self._detached:
            return None
        self._detached = detached
        if detached:
            LOGGER.error(
                "vLLM generates tokens but has not called this plugin for %.0f s: it drops its plugins when it scales "
                "up (--enable-elastic-ep). What is shown stands still; restart vLLM to have it go on", CHECK_SECONDS
            )  # fmt: skip
        return detached
