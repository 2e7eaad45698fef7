"""The HTTP server of the scrape endpoint: one thread for all connections, another one for the pages.

No client can make it wait. Connections do not block, every part of an exchange has a deadline, and the resources of
clients are limited (`limits.py`). The thread of the connections answers probes, also while a page is rendered.
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
from vllm_vitals.exporters.prometheus.connections import Client, Slots, State, peer_of
from vllm_vitals.exporters.prometheus.message import RefusedError, Request, Response, plain
from vllm_vitals.exporters.prometheus.pages import Pages
from vllm_vitals.exporters.prometheus.tls import Certificates

OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""The system has no room for another connection."""
MAX_CLOSE_SECONDS = 2.0
"""Longest wait of `close` for the port to be free."""

Page = TypeVar("Page", bound=Hashable)


class App(Protocol[Page]):
    """The content of the server."""

    def answer(self, request: Request) -> Response | Page:
        """Return the response if it is known at once, else the page to render."""

    def page(self, page: Page, readers: int) -> Response:
        """Render a page for that many readers. Always called by the same thread."""

    def work_seconds(self) -> float:
        """Return the processor time that pages have taken so far; called by the thread that renders them."""


class Server(Generic[Page]):
    """Serves HTTP on listening sockets."""

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
        """Connections to read at the next tick: they send in small pieces, or have their response."""
        self._tick_due = 0.0
        self._accept_due = 0.0
        """Time to accept again; 0 unless accepting is paused."""
        self._closing = False
        self._free = threading.Event()
        """Set when the port is free."""
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
        except RuntimeError:  # the system has no more threads; a retry must not leave this one behind
            self._pages.end()
            raise

    def close(self) -> None:
        """Stop listening, and wait until that is done. Requested pages are still sent."""
        self._closing = True
        self._wake()
        self._free.wait(MAX_CLOSE_SECONDS)

    def after_fork_in_child(self) -> None:
        """Close the copies in the child of a fork. The selector must not be changed: both processes share its watch list."""
        for copied in (*self._listeners, *(client.connection for client in self._slots), self._woken, self._waker):
            with suppress(OSError):
                copied.close()
        self._selector.close()

    def _wake(self) -> None:
        with suppress(OSError):  # full: the thread is awake anyway; or closed
            self._waker.send(b"\0")

    def _run(self) -> None:
        while not (self._closing and self._free.is_set() and not len(self._slots)):
            try:
                self._turn()
            except Exception:  # noqa: BLE001 - the endpoint stays up, without a busy loop
                log_once(logging.ERROR, "The scrape endpoint failed", traceback=True)
                time.sleep(limits.TICK_SECONDS)
        self._pages.end()
        self._selector.close()
        for end in (self._woken, self._waker):
            end.close()

    def _turn(self) -> None:
        """Do the work that is ready. Present connections come before new ones."""
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
        """Check the deadlines, and continue the resting connections."""
        for client in [client for client in self._slots if client.deadline <= now]:
            self._deadline_passed(client)
            self._rest()  # all connections of a flood may be late at once
        resting, self._resting = self._resting, set()
        for client in resting:
            self._advance(client)
        if self._accept_due and now >= self._accept_due:
            self._accept_due = now + limits.PAUSE_SECONDS  # in case the system refuses to watch one of them
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
        for client in [client for client in self._slots if client.state in (State.HANDSHAKE, State.READING)]:
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
        """Close an idle connection, or pause accepting if there is none. Return whether one was closed."""
        if error.errno in OUT_OF_RESOURCES:
            message = "The scrape endpoint cannot accept a connection, and retries every %g s: %s"
            log_once(logging.WARNING, message, limits.PAUSE_SECONDS, error, key="scrape-accept")
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
        except (OSError, ValueError):  # it is closed already
            connection.close()
            return
        client = Client(connection, peer, time.monotonic())
        self._slots.enter(client)
        self._advance(client)  # most clients have sent their request already

    # --- Present connections

    def _advance(self, client: Client) -> None:
        """Continue an exchange as far as possible without waiting."""
        try:
            self._step(client)
        except OSError:  # the client closed it, or does not speak TLS
            self._drop(client)
        except Exception:  # noqa: BLE001 - only this client loses its connection
            log_once(logging.ERROR, "A request of the scrape endpoint failed", traceback=True)
            self._drop(client)
        self._rest()

    def _rest(self) -> None:
        """Release the interpreter after a piece of work. Non-blocking calls release it too, but take it back at once."""
        if time.monotonic() - self._worked_since >= PIECE_SECONDS:
            time.sleep(limits.REST_SECONDS)
            self._worked_since = time.monotonic()

    def _step(self, client: Client) -> None:
        if client.state is State.HANDSHAKE and client.continue_handshake():
            client.start_reading(time.monotonic())
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
            found = refused.response
        if isinstance(found, Response):
            self._respond(client, found)
        elif self._slots.may_wait(client.peer):
            self._ignore(client)
            self._slots.leave(client)
            client.state, client.deadline = State.WAITING, client.exchange_deadline
            self._slots.enter(client)
            self._pages.ask(client, found)
        else:
            overload = "Too many requests are waiting for a page: retry in a second"
            self._respond(client, plain(HTTPStatus.SERVICE_UNAVAILABLE, overload, ("Retry-After", "1")))

    def _take_pages(self) -> None:
        """Send finished pages to the clients that waited for them."""
        with suppress(BlockingIOError):
            self._woken.recv(limits.CLIENTS)
        while done := self._pages.take():
            for client in done.clients:
                if client.state is State.WAITING:
                    self._respond(client, done.response)
                    self._advance(client)
            self._limit_answers(done.response)

    def _limit_answers(self, newest: Response) -> None:
        """While all responses together are too large, close the oldest readers of responses other than the newest."""
        clients = [client for client in self._slots if client.state is State.ANSWERING]
        sizes = {id(client.body): len(client.body) for client in clients}
        for client in sorted(clients, key=lambda client: client.exchange_deadline):
            if sum(sizes.values()) <= limits.ANSWER_BYTES:
                return
            if client.body is not newest.body:
                sizes.pop(id(client.body), None)
                for reader in [reader for reader in clients if reader.body is client.body]:
                    self._drop(reader)

    def _respond(self, client: Client, response: Response) -> None:
        self._slots.leave(client)
        client.start_response(response)
        self._slots.enter(client)

    def _finish(self, client: Client) -> None:
        """Close the connection, or wait a moment for bytes that the client may still be sending."""
        if not client.more and not client.unread:
            self._drop(client)
            return
        self._slots.leave(client)
        client.linger(time.monotonic())
        self._slots.enter(client)

    def _deadline_passed(self, client: Client) -> None:
        if client.state is not State.READING or client.silent:
            self._drop(client)
            return
        client.more = True
        late = f"The head of the request took longer than {limits.HEAD_SECONDS:g} s"
        self._respond(client, plain(HTTPStatus.REQUEST_TIMEOUT, late))
        self._advance(client)

    def _drop(self, client: Client) -> None:
        if client.state is State.GONE:
            return
        self._ignore(client)
        self._resting.discard(client)
        self._slots.leave(client)
        client.close()

    def _watch(self, client: Client) -> None:
        """Let the selector watch a connection, or the tick if it is not urgent."""
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
        if client.watched:  # asking the selector costs more: it raises for an unknown connection
            client.watched = False
            self._selector.unregister(client.connection)
