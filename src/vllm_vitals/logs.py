"""Logging that says a thing once."""

import logging

# A child of vLLM's own logger, so that our lines reach its handlers in its format.
LOGGER = logging.getLogger("vllm.vitals")
MOST_KEYS = 1000

_said: set[str] = set()


def log_once(level: int, message: str, *args: object, key: str = "", traceback: bool = False) -> None:
    """Log a message the first time its key (by default the message with its arguments) is seen."""
    key = key or message % args
    if key in _said or len(_said) >= MOST_KEYS:
        return
    _said.add(key)  # two threads at once say it twice at worst; no lock to be caught in by a fork
    LOGGER.log(level, message, *args, exc_info=traceback)
