"""Work that may take as long as it likes, or hang: it is done on a thread of its own, and nobody has to wait for it."""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass
class Outcome(Generic[T]):
    """What came of doing it once."""

    items: list[T] = field(default_factory=list)
    error: BaseException | None = None
    """Why there may be no more items."""
    done: threading.Event = field(default_factory=threading.Event)

    def check(self) -> None:
        """Raise why there may be no more items; what is no `Exception`, as a RuntimeError."""
        if isinstance(self.error, Exception):
            raise self.error
        if self.error is not None:
            raise RuntimeError(repr(self.error)) from self.error


class Apart(Generic[T]):
    """Does the same work again and again, each time that it is asked to; for one thread that asks."""

    def __init__(self, work: Callable[[], Iterable[T]], name: str) -> None:
        """Take note of the work, and of how its thread is called."""
        self._work = work
        self._asked: SimpleQueue[Outcome[T] | None] = SimpleQueue()
        self._late: Outcome[T] | None = None
        """What nobody waited for any longer."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread, which cannot be done any more when an interpreter ends."""
        if self._thread.ident is None:
            self._thread.start()

    def end(self) -> None:
        """Let the thread end, once what it is at is over."""
        self._asked.put(None)

    def latest(self, wait: Callable[[Callable[[float], bool]], object]) -> Outcome[T] | None:
        """Do the work and return what came of it, `None` if it is not over yet.

        `wait` waits as long as it sees fit, with what waits so many seconds and tells whether it is over. If it is not
        then, the time before counts, if that was late too. While that one is not over it is not begun anew.
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
            except BaseException as error:  # noqa: BLE001 - whoever asked is told
                outcome.error = error
            outcome.done.set()
