"""A call that may take long, or hang, on its own thread, so that its caller need not wait."""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass
class Outcome(Generic[T]):
    """The result of one run."""

    items: list[T] = field(default_factory=list)
    error: BaseException | None = None
    """The error that ended the run; there may be fewer items."""
    done: threading.Event = field(default_factory=threading.Event)

    def check(self) -> None:
        """Raise the error of the run. An error that is no `Exception` becomes a RuntimeError."""
        if isinstance(self.error, Exception):
            raise self.error
        if self.error is not None:
            raise RuntimeError(repr(self.error)) from self.error


class BackgroundCall(Generic[T]):
    """Runs the same work each time that one other thread asks."""

    def __init__(self, work: Callable[[], Iterable[T]], name: str) -> None:
        """Prepare: `work` gives the items of a run. `name`: of its thread."""
        self._work = work
        self._asked: SimpleQueue[Outcome[T] | None] = SimpleQueue()
        self._late: Outcome[T] | None = None
        """The latest run that was not over in time."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread. That is too late once the interpreter ends."""
        if self._thread.ident is None:
            self._thread.start()

    def end(self) -> None:
        """Let the thread end after its present run."""
        self._asked.put(None)

    def result(self, wait: Callable[[Callable[[float], bool]], object]) -> Outcome[T] | None:
        """Return the result of this run, or of a late previous one; `None` if neither is ready.

        `wait` gets a function that waits some seconds for the end of the run and returns whether it came. No run begins
        while the previous one is not over.
        """
        self.start()
        before = self._late
        if before is not None and not before.done.is_set():
            return None
        now = Outcome[T]()
        self._asked.put(now)
        wait(now.done.wait)
        self._late = None if now.done.is_set() else now
        return before if self._late else now

    def _run(self) -> None:
        while (outcome := self._asked.get()) is not None:
            try:
                for item in self._work():
                    outcome.items.append(item)
            except BaseException as error:  # noqa: BLE001 - the caller raises it
                outcome.error = error
            outcome.done.set()
