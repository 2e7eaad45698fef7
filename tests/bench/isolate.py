"""Runs a measurement in a process of its own, so that the threads of one candidate never disturb another."""

import contextlib
import gc
import multiprocessing
import socket
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, TypeVar

# Importing vLLM takes many seconds: each measurement starts as a copy of a process that has done it.
_context = multiprocessing.get_context("fork")
_ending = contextlib.ExitStack()
"""What a measurement has started beside its own process."""

Started = TypeVar("Started")


class Fresh:
    """A measurement under way in a new process."""

    def __init__(self, measure: Callable[..., Any], *args: Any, **options: Any) -> None:
        self._receiver, sender = _context.Pipe(duplex=False)
        self._process = _context.Process(target=_send, args=(sender, partial(measure, *args, **options)))
        self._process.start()
        sender.close()

    def result(self) -> Any:
        """Return what the measurement did, when its process is gone.

        Raises:
            RuntimeError: when it failed; its own error is on stderr.
        """
        try:
            return self._receiver.recv()
        except EOFError:
            raise RuntimeError("a measurement failed") from None
        finally:
            self._process.join()


def fresh(measure: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Return the result of `measure(*args, **options)` from a process of its own."""
    return Fresh(measure, *args, **options).result()


def _send(sender: Connection, measure: Callable[[], Any]) -> None:
    """Measure with the start-up heap out of the garbage collector's sight, as in vLLM's server."""
    gc.collect()
    gc.freeze()
    with _ending:
        sender.send(measure())


def until_end(context: contextlib.AbstractContextManager[Started]) -> Started:
    """Enter a context that is left when the measurement of this process has ended."""
    return _ending.enter_context(context)


def free_port() -> int:
    """Return a TCP port nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
