"""What many tests share, such as a running server: made ahead of the first test that needs it, ended after the last."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack
from typing import Any

Make = Callable[[], AbstractContextManager[Any]]


class Fleet:
    """Shared things by name; one is made at a time, on a thread, while tests work with another."""

    def __init__(self, makers: Mapping[str, Make]) -> None:
        self._makers = makers
        self._pool = ThreadPoolExecutor(1)
        self._begun: dict[str, tuple[ExitStack, Future[Any]]] = {}

    def begin(self, name: str) -> None:
        """Begin to make one, unless that was done."""
        if name not in self._begun:
            stack = ExitStack()
            self._begun[name] = stack, self._pool.submit(lambda: stack.enter_context(self._makers[name]()))

    def get(self, name: str) -> Any:
        """Return one that is ready; raise what went wrong while it was made."""
        self.begin(name)
        return self._begun[name][1].result()

    def end(self, name: str) -> None:
        """End one, if it was begun."""
        if name in self._begun:
            stack, made = self._begun.pop(name)
            wait([made])
            stack.close()

    def close(self) -> None:
        """End all."""
        for name in list(self._begun):
            self.end(name)
        self._pool.shutdown()
