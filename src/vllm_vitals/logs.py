"""Logging that says whose line it is, and says a thing once."""

import logging
from collections.abc import MutableMapping
from typing import Any

MOST_KEYS = 1000
_said: set[str] = set()


class _Named(logging.LoggerAdapter):  # type: ignore[type-arg]  # no generic before Python 3.11
    """Puts our name before each line: vLLM's format shows none."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return f"vllm-vitals: {msg}", kwargs


# A child of vLLM's own logger, so that our lines reach its handlers.
LOGGER = _Named(logging.getLogger("vllm.vitals"), {})


def log_once(level: int, message: str, *args: object, key: str = "", traceback: bool = False) -> None:
    """Log a message the first time its key (by default the message with its arguments) is seen."""
    key = key or message % args
    if key in _said or len(_said) >= MOST_KEYS:
        return
    _said.add(key)  # two threads at once say it twice at worst; no lock to be caught in by a fork
    LOGGER.log(level, message, *args, exc_info=traceback)
