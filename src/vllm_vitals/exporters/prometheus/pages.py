"""The thread that renders pages. Requests that wait for the same page share it."""

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Hashable
from http import HTTPStatus
from typing import Generic, NamedTuple, TypeVar

from vllm_vitals._util.log import log_once
from vllm_vitals.exporters.prometheus.client import Client, State
from vllm_vitals.exporters.prometheus.message import Answer, plain

Page = TypeVar("Page", bound=Hashable)


class Done(NamedTuple):
    """A page and who waited for it."""

    clients: list[Client]
    answer: Answer


class Pages(Generic[Page]):
    """Renders one page after another."""

    def __init__(self, render: Callable[[Page, int], Answer], wake: Callable[[], None]) -> None:
        """`render` makes a page for so many readers; `wake` is called when one is done."""
        self._render = render
        self._wake = wake
        self._waiting: dict[Client, Page] = {}
        self._changed = threading.Condition(threading.Lock())
        self._ended = False
        self._done: deque[Done] = deque()

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name="vitals-pages", daemon=True).start()

    def end(self) -> None:
        """Let the thread end once what it is at is over."""
        with self._changed:
            self._ended = True
            self._changed.notify()

    def ask(self, client: Client, page: Page) -> None:
        """Let a client wait for a page that is as new as its request."""
        with self._changed:
            self._waiting[client] = page
            self._changed.notify()

    def take(self) -> Done | None:
        """Return a page that is done, if there is one."""
        return self._done.popleft() if self._done else None

    def _run(self) -> None:
        while (following := self._next()) is not None:
            page, clients = following
            try:
                answer = self._render(page, len(clients))
            except BaseException as error:  # noqa: BLE001 - whatever it is, the next page may do
                log_once(logging.ERROR, "A page of the scrape endpoint failed", traceback=True)
                answer = plain(HTTPStatus.INTERNAL_SERVER_ERROR, type(error).__name__)
            self._done.append(Done(clients, answer))
            self._wake()

    def _next(self) -> tuple[Page, list[Client]] | None:
        """Wait, and return the next page with all who want it; `None` at the end."""
        with self._changed:
            while True:
                for client in [client for client in self._waiting if client.state is State.GONE]:
                    del self._waiting[client]
                if self._waiting:
                    break
                if self._ended:
                    return None
                self._changed.wait()
            # An address with few requests does not wait for all those of another.
            requests = Counter(client.peer for client in self._waiting)
            page = self._waiting[min(self._waiting, key=lambda client: requests[client.peer])]
            clients = [client for client, wanted in self._waiting.items() if wanted == page]
            for client in clients:
                del self._waiting[client]
            return page, clients
