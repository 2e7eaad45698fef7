"""The HTTP server of the scrape endpoint: one thread for all connections, another for the pages.

No client can make it wait: connections do not block, every part of an exchange has a deadline, and what clients hold
is limited (`limits.py`). Probes are answered by the thread of the connections, while a page is rendered too.
"""

import errno
import logging
import socket
import threading
import time
from collections.abc import Hashable
from contextlib import suppress
from http import HTTPStatus
from selectors import EVENT_READ, DefaultSelector
from typing import Generic, Protocol, TypeVar

from vllm_vitals._util.log import log_once
from vllm_vitals._util.pacing import PIECE_SECONDS
from vllm_vitals.exporters.prometheus import limits
from vllm_vitals.exporters.prometheus.client import Client, State, peer_of
from vllm_vitals.exporters.prometheus.message import Answer, RefusedError, Request, plain
from vllm_vitals.exporters.prometheus.pages import Pages
from vllm_vitals.exporters.prometheus.slots import Slots
from vllm_vitals.exporters.prometheus.tls import Certificates

SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""The system has no room for another connection."""
CLOSE_SECONDS = 2.0
"""Seconds that `close` waits at most for the port to be free."""

Page = TypeVar("Page", bound=Hashable)


class App(Protocol[Page]):
    """What the server serves."""

    def answer(self, request: Request) -> Answer | Page:
        """Return the answer if it is known at once, else the page that has to be rendered."""

    def page(self, page: Page, readers: int) -> Answer:
        """Render a page for so many readers; only ever called by one thread."""

    def work_seconds(self) -> float:
        """Return the processor time that pages have taken so far; called by the thread that renders them."""


class Server(Generic[Page]):
    """Answers on sockets that listen."""

    def __init__(self, listeners: list[socket.socket], app: App[Page], certificates: Certificates | None) -> None:
        """`certificates`: `None` without TLS."""
        self.ports = [listener.getsockname()[1] for listener in listeners]
        self._listeners = listeners
        self._app = app
        self._certificates = certificates
        self._slots = Slots()
        self._selector = DefaultSelector()
        self._woken, self._waker = socket.socketpair()
        self._pages: Pages[Page] = Pages(app.page, self._wake, app.work_seconds)
        self._resting: set[Client] = set()
        """Those that are read at the next tick: they send in small pieces, or have their answer."""
        self._tick_due = 0.0
        self._accept_due = 0.0
        """When to accept again; 0 unless accepting is paused."""
        self._closing = False
        self._free = threading.Event()
        """Set when the port is free again."""
        self._worked_since = time.monotonic()

    def start(self) -> None:
        """Start both threads."""
        for end in (self._woken, self._waker, *self._listeners):
            end.setblocking(False)
        for watched in (self._woken, *self._listeners):
            self._selector.register(watched, EVENT_READ)
        self._pages.start()
        try:
            threading.Thread(target=self._run, name="vitals-scrapes", daemon=True).start()
        except RuntimeError:  # the system gives no more threads; whoever tries again shall not collect them
            self._pages.end()
            raise

    def close(self) -> None:
        """Listen no more, and return when that is so. Pages that are asked for are still sent."""
        self._closing = True
        self._wake()
        self._free.wait(CLOSE_SECONDS)

    def after_fork_in_child(self) -> None:
        """Close what a fork copied. The selector's own copy must not be changed: both processes share what it watches."""
        for copied in (*self._listeners, *(client.connection for client in self._slots), self._woken, self._waker):
            with suppress(OSError):
                copied.close()
        self._selector.close()

    def _wake(self) -> None:
        with suppress(OSError):  # full, so it is awake anyway; or closed
            self._waker.send(b"\0")

    def _run(self) -> None:
        while not (self._closing and self._free.is_set() and not len(self._slots)):
            try:
                self._turn()
            except Exception:  # noqa: BLE001 - the endpoint stays up, and does not spin
                log_once(logging.ERROR, "The scrape endpoint failed", traceback=True)
                time.sleep(limits.TICK_SECONDS)
        self._pages.end()
        self._selector.close()
        for end in (self._woken, self._waker):
            end.close()

    def _turn(self) -> None:
        """Do what can be done now. Who is here comes before who is new."""
        busy = len(self._slots) or self._accept_due
        ready = [key for key, _ in self._selector.select(limits.TICK_SECONDS if busy else None)]
        for key in ready:
            if isinstance(key.data, Client):
                self._advance(key.data)
        if any(key.fileobj is self._woken for key in ready):
            self._take_pages()
        if self._closing and not self._free.is_set():
            self._stop_listening()
        for listener in [key.fileobj for key in ready if key.fileobj in self._listeners]:
            self._accept(listener)
        if (now := time.monotonic()) >= self._tick_due:
            self._tick_due = now + limits.TICK_SECONDS
            self._tick(now)

    def _tick(self, now: float) -> None:
        """Look at the deadlines, and go on with what rests."""
        for client in [client for client in self._slots if client.due <= now]:
            self._late(client)
            self._rest()  # all of a flood may be late at once
        resting, self._resting = self._resting, set()
        for client in resting:
            self._advance(client)
        if self._accept_due and now >= self._accept_due:
            self._accept_due = now + limits.PAUSE_SECONDS  # unless the system lets all of them be watched
            for listener in self._listeners:
                if listener not in self._selector.get_map():
                    self._selector.register(listener, EVENT_READ)
            self._accept_due = 0.0

    def _stop_listening(self) -> None:
        self._ignore_listeners()
        for listener in self._listeners:
            listener.close()
        self._listeners, self._accept_due = [], 0.0
        self._free.set()
        for client in [client for client in self._slots if client.state in (State.SHAKING, State.READING)]:
            self._drop(client)

    # --- New connections

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(limits.ACCEPTS):
            try:
                connection, address = listener.accept()
            except BlockingIOError:
                return
            except (ConnectionError, InterruptedError):
                continue
            except OSError as error:
                if not self._find_room(error):
                    return
                continue
            self._admit(connection, address[0])

    def _find_room(self, error: OSError) -> bool:
        """Close an idle connection if there is one, else accept nothing for a while; return whether one was closed."""
        if error.errno in SHORT:
            tell = "The scrape endpoint cannot accept a connection, and tries again every %g s: %s"
            log_once(logging.WARNING, tell, limits.PAUSE_SECONDS, error, key="scrape-accept")
            if idle := self._slots.idle():
                self._drop(idle)
                return True
        self._accept_due = time.monotonic() + limits.PAUSE_SECONDS
        self._ignore_listeners()
        return False

    def _ignore_listeners(self) -> None:
        for listener in self._listeners:
            with suppress(KeyError):
                self._selector.unregister(listener)

    def _admit(self, connection: socket.socket, host: str) -> None:
        peer = peer_of(host)
        while surplus := self._slots.surplus(peer):
            self._drop(surplus)
        try:
            connection.setblocking(False)
            if self._certificates is not None:
                connection = self._certificates.context.wrap_socket(
                    connection, server_side=True, do_handshake_on_connect=False
                )
        except (OSError, ValueError):  # it is gone already
            connection.close()
            return
        client = Client(connection, peer, time.monotonic())
        self._slots.enter(client)
        self._advance(client)  # most have sent their request already

    # --- Those there are

    def _advance(self, client: Client) -> None:
        """Go on with an exchange as far as that goes without waiting."""
        try:
            self._step(client)
        except OSError:  # it hung up, or speaks no TLS
            self._drop(client)
        except Exception:  # noqa: BLE001 - it costs this client its connection, and no other
            log_once(logging.ERROR, "A request of the scrape endpoint failed", traceback=True)
            self._drop(client)
        self._rest()

    def _rest(self) -> None:
        """Give the interpreter up after a piece of work. Non-blocking calls give it up too, but take it right back."""
        if time.monotonic() - self._worked_since >= PIECE_SECONDS:
            time.sleep(limits.REST_SECONDS)
            self._worked_since = time.monotonic()

    def _step(self, client: Client) -> None:
        if client.state is State.SHAKING and client.shake():
            client.listen(time.monotonic())
        if client.state is State.READING:
            self._read(client)
        if client.state is State.ANSWERING and client.write():
            self._finish(client)
        if client.state is State.LINGERING and client.discard():
            self._drop(client)
        if client.state not in (State.WAITING, State.GONE):
            self._watch(client)

    def _read(self, client: Client) -> None:
        try:
            request = client.read()
            if request is None:
                return
            found = self._app.answer(request)
        except RefusedError as refused:
            client.more = True
            found = refused.answer
        if isinstance(found, Answer):
            self._answer(client, found)
        elif self._slots.may_wait(client.peer):
            self._ignore(client)
            self._slots.leave(client)
            client.state, client.due = State.WAITING, client.end
            self._slots.enter(client)
            self._pages.ask(client, found)
        else:
            many = "Too many requests wait for a page: try again in a second"
            self._answer(client, plain(HTTPStatus.SERVICE_UNAVAILABLE, many, ("Retry-After", "1")))

    def _take_pages(self) -> None:
        """Send the pages that are done to those who waited for them."""
        with suppress(BlockingIOError):
            self._woken.recv(limits.CLIENTS)
        while done := self._pages.take():
            for client in done.clients:
                if client.state is State.WAITING:
                    self._answer(client, done.answer)
                    self._advance(client)
            self._limit_answers(done.answer)

    def _limit_answers(self, newest: Answer) -> None:
        """Drop the oldest readers of other answers than the newest while all answers together are too large."""
        clients = [client for client in self._slots if client.state is State.ANSWERING]
        sizes = {id(client.body): len(client.body) for client in clients}
        for client in sorted(clients, key=lambda client: client.end):
            if sum(sizes.values()) <= limits.ANSWER_BYTES:
                return
            if client.body is not newest.body:
                sizes.pop(id(client.body), None)
                for reader in [reader for reader in clients if reader.body is client.body]:
                    self._drop(reader)

    def _answer(self, client: Client, answer: Answer) -> None:
        self._slots.leave(client)
        client.answer(answer)
        self._slots.enter(client)

    def _finish(self, client: Client) -> None:
        """Hang up, or wait a moment for what the client may still be sending."""
        if not client.more and not client.unread:
            self._drop(client)
            return
        self._slots.leave(client)
        client.linger(time.monotonic())
        self._slots.enter(client)

    def _late(self, client: Client) -> None:
        if client.state is not State.READING or client.silent:
            self._drop(client)
            return
        client.more = True
        late = f"The head of the request took longer than {limits.HEAD_SECONDS:g} s"
        self._answer(client, plain(HTTPStatus.REQUEST_TIMEOUT, late))
        self._advance(client)

    def _drop(self, client: Client) -> None:
        if client.state is State.GONE:
            return
        self._ignore(client)
        self._resting.discard(client)
        self._slots.leave(client)
        client.close()

    def _watch(self, client: Client) -> None:
        """Let the selector tell when a client can go on, or the tick when there is no hurry."""
        slow = client.reads > limits.QUICK_READS and client.state is not State.ANSWERING
        if slow or client.state is State.LINGERING:
            self._ignore(client)
            self._resting.add(client)
        elif not client.watched:
            self._selector.register(client.connection, client.wants, client)
            client.watched = True
        else:
            self._selector.modify(client.connection, client.wants, client)

    def _ignore(self, client: Client) -> None:
        if client.watched:  # to ask the selector costs more: its answer for one that it does not know is an exception
            client.watched = False
            self._selector.unregister(client.connection)
