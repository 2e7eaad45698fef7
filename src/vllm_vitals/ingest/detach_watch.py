"""Notices when vLLM goes on without us: it drops plugins when it scales its engines up, without a word."""

import time
from collections.abc import Callable

from vllm_vitals._util.log import LOGGER

LOOK = 10.0
"""Seconds between two looks."""


class Watch:
    """Compares the tokens that vLLM counts with the calls that we get."""

    def __init__(self, generated: Callable[[], float]) -> None:
        """Begin to watch; `generated` gives the tokens that vLLM itself has counted in this process."""
        self._generated = generated
        self._looked = time.monotonic()
        self._before: tuple[float, float] | None = None
        self._detached = False

    def look(self, hooks: Callable[[], float]) -> bool | None:
        """Return whether vLLM goes on without us, `None` when that is not new.

        `hooks` gives the seconds that all our hooks have taken up to now, which grow with every call.
        """
        now = time.monotonic()
        if now - self._looked < LOOK:
            return None
        self._looked = now
        tokens, before = self._generated(), self._before
        spent = hooks()  # after the tokens: vLLM calls us before it counts
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
                "up (--enable-elastic-ep). What is shown stands still; restart vLLM to have it go on", LOOK
            )  # fmt: skip
        return detached
