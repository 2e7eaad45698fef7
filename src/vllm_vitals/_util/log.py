"""Logging that says whose line it is, says a thing once, and no secret ever."""

import logging
import traceback as tracebacks
from collections import deque
from collections.abc import MutableMapping
from typing import Any

from vllm_vitals._util.redact import Redactor

MOST_KEYS = 1000
LONGEST_TRACE = 16384
_said: set[str] = set()
_redactors: deque[Redactor] = deque(maxlen=8)
"""The latest: a process has a few parts that know secrets, its tests have many."""


class _Named(logging.LoggerAdapter):  # type: ignore[type-arg]  # no generic before Python 3.11
    """Puts our name before each line: vLLM's format shows none."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return f"vllm-vitals: {msg}", kwargs


def _without_secrets(record: logging.LogRecord) -> bool:
    """Hide what is secret in a line and in its traceback before any handler sees them."""
    try:
        for redactor in tuple(_redactors):
            _redact(record, redactor)
    except Exception as error:  # noqa: BLE001 - a line that cannot be read may hold one
        record.msg, record.args = f"vllm-vitals: a line could not be written: {type(error).__name__}", ()
        record.exc_info = record.exc_text = None
    return True


def _redact(record: logging.LogRecord, redactor: Redactor) -> None:
    message = record.getMessage()
    # What is short enough to be in other words by chance is looked for in what peers say only.
    shown = redactor.clean(message, short=False)
    if shown != message:
        record.msg, record.args = shown, ()
    if record.exc_text:
        record.exc_text = redactor.clean(record.exc_text, LONGEST_TRACE, short=False)
    if record.exc_info and record.exc_info[0]:
        trace = "".join(tracebacks.format_exception(*record.exc_info)).rstrip()
        shown = redactor.clean(trace, max(len(trace), LONGEST_TRACE), short=False)
        if shown != trace:
            record.exc_text, record.exc_info = shown[:LONGEST_TRACE], None


# A child of vLLM's own logger, so that our lines reach its handlers.
LOGGER = _Named(logging.getLogger("vllm.vitals"), {})
LOGGER.logger.addFilter(_without_secrets)


def keep_out(redactor: Redactor) -> None:
    """Hide some secrets in every line from now on."""
    _redactors.append(redactor)


def log_once(level: int, message: str, *args: object, key: str = "", traceback: bool = False) -> bool:
    """Log a message the first time its key (by default the message with its arguments) is seen; return whether it was."""
    key = key or message % args
    if key in _said or len(_said) >= MOST_KEYS:
        return False
    _said.add(key)  # two threads at once say it twice at worst; no lock to be caught in by a fork
    LOGGER.log(level, message, *args, exc_info=traceback)
    return True
