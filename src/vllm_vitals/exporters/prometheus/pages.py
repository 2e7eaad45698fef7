"""The thread that renders pages. Requests that wait for the same page share it."""

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable
from http import HTTPStatus
from typing import Generic, NamedTuple, TypeVar

from vllm_vitals._util.log import log_once
from vllm_vitals.exporters.prometheus import limits
from vllm_vitals.exporters.prometheus.connections import Client, State
from vllm_vitals.exporters.prometheus.message import Response, plain

Page = TypeVar("Page", bound=Hashable)


class Done(NamedTuple):
    """A page and the clients that waited for it."""

    clients: list[Client]
    response: Response


class RenderBudget:
    """How much may be rendered: a token bucket, filled with `RENDER_SHARE` of the time up to `RENDER_BURST_SECONDS`.

    Rendering in small pieces keeps each delay of vLLM's event loop short. Without a budget, clients that scrape without
    a pause would make these delays permanent.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds = limits.RENDER_BURST_SECONDS
        self._updated = clock()

    def spend(self, seconds: float) -> None:
        """Take the cost of a page. The budget may become negative: the next page waits longer then."""
        self._refill()
        self._seconds -= seconds

    def pause(self) -> float:
        """Return the seconds until the next page may be rendered; 0 if it may be rendered now."""
        self._refill()
        return max(-self._seconds, 0.0) / limits.RENDER_SHARE

    def _refill(self) -> None:
        now = self._clock()
        earned = (now - self._updated) * limits.RENDER_SHARE
        self._seconds = min(self._seconds + earned, limits.RENDER_BURST_SECONDS)
        self._updated = now


class Pages(Generic[Page]):
    """Renders one page after another, within a budget."""

    def __init__(
        self,
        render: Callable[[Page, int], Response],
        wake: Callable[[], None],
        work_clock: Callable[[], float],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        """`render` makes a page for that many readers; `wake` is called when one is done.

        `work_clock` returns the processor time that pages have taken so far.
        """
        self._render = render
        self._wake = wake
        self._budget = RenderBudget(clock)
        self._work_clock = work_clock
        self._ended = threading.Event()
        self._sleep = sleep or self._ended.wait
        self._waiting: dict[Client, Page] = {}
        self._changed = threading.Condition(threading.Lock())
        self._done: deque[Done] = deque()

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name="vitals-pages", daemon=True).start()

    def end(self) -> None:
        """Let the thread end after its present work."""
        with self._changed:
            self._ended.set()
            self._changed.notify()

    def ask(self, client: Client, page: Page) -> None:
        """Let a client wait for a page that is rendered after its request."""
        with self._changed:
            self._waiting[client] = page
            self._changed.notify()

    def take(self) -> Done | None:
        """Return a finished page, or `None`."""
        return self._done.popleft() if self._done else None

    def _run(self) -> None:
        while (following := self._next()) is not None:
            page, clients = following
            begun = self._work_clock()
            try:
                response = self._render(page, len(clients))
            except BaseException as error:  # noqa: BLE001 - the next page may succeed
                log_once(logging.ERROR, "A page of the scrape endpoint failed", traceback=True)
                response = plain(HTTPStatus.INTERNAL_SERVER_ERROR, type(error).__name__)
            self._budget.spend(self._work_clock() - begun)
            self._done.append(Done(clients, response))
            self._wake()

    def _next(self) -> tuple[Page, list[Client]] | None:
        """Wait, and return the next page with all clients that want it; `None` at the end."""
        while self._wait_for_request():
            if pause := self._budget.pause():
                self._sleep(pause)  # without the lock: requests that come meanwhile share the page
            if chosen := self._choose():
                return chosen
        return None

    def _wait_for_request(self) -> bool:
        """Wait until a page is wanted; return `False` at the end instead."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._ended.is_set())
            return bool(self._waiting)

    def _choose(self) -> tuple[Page, list[Client]] | None:
        with self._changed:
            for client in [client for client in self._waiting if client.state is State.GONE]:
                del self._waiting[client]
            if not self._waiting:
                return None
            # An address with few requests does not wait for all those of another.
            requests = Counter(client.peer for client in self._waiting)
            page = self._waiting[min(self._waiting, key=lambda client: requests[client.peer])]
            clients = [client for client, wanted in self._waiting.items() if wanted == page]
            for client in clients:
                del self._waiting[client]
            return page, clients
