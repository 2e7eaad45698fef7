"""The collector's end: listens on a Unix socket, and hands on what serving processes send."""

import logging
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from vllm_vitals._util.log import LOGGER, log_once
from vllm_vitals.records.step import Gap, Record
from vllm_vitals.transport.peers import Peer, Process, Processes, Room
from vllm_vitals.transport.protocol import (
    CLOSED,
    FOREIGN,
    LONGEST_REASON,
    MOST_FROM_CLIENT,
    PROTOCOL,
    SLOW,
    UNKNOWN,
    Batch,
    Frames,
    Hello,
    Refusal,
    Taken,
    Welcome,
    WireError,
    deliver,
    encode,
    from_client,
    hang_up,
    protocol_of,
    receive,
    trusted,
)
from vllm_vitals.transport.unix_socket import Listener
from vllm_vitals.transport.wakeup import Wake

HANDSHAKE = 5.0
"""Seconds from the connection within which a process must have presented itself."""
IDLE = 60.0
"""Seconds without a batch, be it an empty one, after which a process is taken to be stuck."""
MOST_OF_HELLO = 1 << 20
"""Bytes: until a process has presented itself, it is not given the room of a batch."""

Take = Callable[[Peer, Sequence[Record], float], None]
"""Takes records, and monotonic seconds up to which all was told; never raises."""


def converse(
    conn: socket.socket,
    collector: str,
    processes: Processes,
    pass_on: Take,
    room: Room,
    known: Callable[[], None] = lambda: None,
) -> None:
    """Hand on what a process sends, each batch once, until one side ends it; `known` is called once it has said who it is.

    Raises:
        WireError: always, with the reason of the end.
    """
    try:
        payload = receive(conn, frames := Frames(MOST_OF_HELLO), whole=HANDSHAKE, hold=room.hold)
        with room.turn(conn, len(payload), greeting=True):
            hello = _greeting(payload)
            process = processes.enter(Peer(hello.process, hello.name, hello.pid), conn)
            with process.telling:
                pass_on(process.peer, hello.records, 0.0)
                welcome = Welcome(PROTOCOL, collector, process.taken)
        del payload, hello
        try:
            known()
            deliver(conn, encode(welcome))
            frames.limit = MOST_FROM_CLIENT
            while True:
                _take(process, conn, receive(conn, frames, idle=IDLE, hold=room.hold), pass_on, room)
        finally:
            processes.leave(process, conn)
    except WireError as error:
        if room.leave(conn) and error.reason == CLOSED:
            raise room.reason from error
        if error.reason not in (CLOSED, SLOW):  # what is sent again is worth no more then
            with suppress(WireError):
                deliver(conn, encode(Refusal(str(error)[:LONGEST_REASON])), 1.0)
        raise
    finally:
        room.leave(conn)


def _greeting(payload: bytes) -> Hello:
    protocol = protocol_of(payload)
    if protocol != PROTOCOL:
        versions = f"the process speaks protocol {protocol}, the collector {PROTOCOL}"
        raise WireError(FOREIGN, f"{versions}; both need the same vllm-vitals")
    hello = from_client(payload)
    if not isinstance(hello, Hello):
        raise WireError(UNKNOWN, "not a Hello")
    return hello


def _take(process: Process, conn: socket.socket, payload: bytes, pass_on: Take, room: Room) -> None:
    """Hand a batch on unless it was before, and say so."""
    with room.turn(conn, len(payload)):
        batch = from_client(payload)
        if not isinstance(batch, Batch):
            raise WireError(UNKNOWN, "not a Batch")
        with process.telling:
            if process.connection is not conn:
                raise WireError(CLOSED, "there is a newer connection")
            if batch.sequence > process.taken:
                dropped = 0 < process.taken < batch.sequence - 1  # it says so only in a later one
                pass_on(process.peer, [Gap(), *batch.records] if dropped else batch.records, batch.until)
                process.taken = batch.sequence
    deliver(conn, encode(Taken(batch.sequence)))


__all__ = ["Peer", "Receiver"]

TICK = 0.5
"""Seconds between two looks whether the socket is still there and who is gone."""
REMEMBERED = 1024
"""Processes of which is known what was taken from them."""

SILENT = 30.0
"""Seconds without such a look after which the listening thread counts as dead."""


@dataclass(eq=False)
class Visit:
    """One connection: the thread that serves it, and whether it has said who it is."""

    thread: threading.Thread | None = None
    known: bool = False


class Receiver:
    """Takes each batch of each process once, in order, on a thread of each connection."""

    def __init__(
        self,
        path: Path,
        collector: str,
        take: Take,
        gone: Callable[[Peer], None],
        broken: Callable[[], None],
        most: int = 256,
        grace: float = 5.0,
    ) -> None:
        """Take note of who shall hear what.

        `collector`: unique per start. `take`: called with records, and monotonic seconds up to which all was told (0
        with what is said first). `gone`: a process has been away for `grace` seconds; never while `take` runs for it.
        `broken`: called for whatever does not keep to the rules. `most`: connections at a time.
        """
        self._path = path
        self._collector = collector
        self._take = take
        self._gone = gone
        self._broken = broken
        self._most = most
        self._grace = grace
        self._processes = Processes(REMEMBERED)
        self._room = Room()
        self._open: dict[socket.socket, Visit] = {}
        """The one that came last is the last."""
        self._listener: Listener | None = None
        self._there = False
        self._looked = time.monotonic()
        self._wake = Wake()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def ready(self) -> bool:
        """Tell whether processes can connect."""
        return self._there and not self._stopped.is_set()

    def ended(self) -> str:
        """Return why nobody can connect until this process is restarted, `""` when it is well."""
        if self._thread is None or self._stopped.is_set():
            return ""
        if not self._thread.is_alive():
            return "the thread that listens has ended"
        silent = time.monotonic() - self._looked
        return f"the thread that listens has hung for {silent:.0f} s" if silent >= SILENT else ""

    def start(self) -> None:
        """Listen, and accept connections on another thread.

        Raises:
            OSError: when the socket cannot be had; the message names it and says why.
        """
        self._listener = Listener(self._path)
        self._there = True
        self._thread = threading.Thread(target=self._run, args=(self._listener,), name="vitals-wire", daemon=True)
        self._thread.start()

    @property
    def connections(self) -> int:
        """Return how many processes are connected."""
        return len(self._open)

    def stop(self) -> None:
        """Close everything; in most cases nothing is handed on any more when this returns, after 2 s at most."""
        end = time.monotonic() + 2.0
        self._stopped.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(max(end - time.monotonic(), 0.0))
        for visit in list(self._open.values()):
            if visit.thread is not None:
                visit.thread.join(max(end - time.monotonic(), 0.0))

    def after_fork_in_child(self) -> None:
        """Close what a fork copied, without touching threads or locks."""
        if self._listener is not None:
            self._listener.socket.close()
        for conn in self._open:
            conn.close()

    def _run(self, listener: Listener) -> None:
        look = 0.0
        try:
            while not self._stopped.is_set():
                self._accept(listener)
                self._looked = time.monotonic()
                if self._looked >= look:
                    look = self._looked + TICK
                    listener = self._look(listener)
        finally:
            self._there = False
            listener.close()
            for conn in list(self._open):
                hang_up(conn)

    def _accept(self, listener: Listener) -> None:
        """Take in who comes, if anyone does before long."""
        try:
            if self._wait(listener):
                self._admit(listener)
        except Exception:  # noqa: BLE001 - the thread must go on; there may be no handle left, say
            self._complain("accept", "Connections at %s cannot be accepted", self._path, traceback=True)
            self._make_way()
            self._stopped.wait(TICK)

    def _wait(self, listener: Listener) -> bool:
        """Wait for a connection, not for long."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        poll.register(listener.socket, select.POLLIN)
        return any(handle == listener.socket.fileno() for handle, _ in poll.poll(TICK * 1000))

    def _admit(self, listener: Listener) -> None:
        conn = listener.accept()
        if conn is None:
            return
        if not trusted(conn):
            conn.close()
            self._complain("user", "A process of another user was turned away at %s", self._path)
        elif len(self._open) >= self._most and not self._make_way():
            conn.close()
            self._complain("many", "More than %d connections at %s; it takes no more", self._most, self._path)
        else:
            visit = self._open[conn] = Visit()
            visit.thread = threading.Thread(target=self._serve, args=(conn, visit), name="vitals-wire", daemon=True)
            try:
                visit.thread.start()
            except RuntimeError:  # there are too many
                del self._open[conn]
                conn.close()
                raise

    def _make_way(self) -> bool:
        """Hang up on the oldest connection that has not said who it is; tell whether there was one."""
        stranger = next((conn for conn, visit in list(self._open.items()) if not visit.known), None)
        if stranger is None:
            return False
        self._open.pop(stranger, None)  # its thread closes it
        hang_up(stranger)
        self._complain("strangers", "Connections at %s say nothing: the oldest makes way for others", self._path)
        return True

    def _look(self, listener: Listener) -> Listener:
        """See who is gone, and whether the socket is still there; return what listens from now on."""
        for process in self._processes.overdue(self._grace):
            self._guard(self._gone, process.peer)
        self._there = listener.ours()
        if self._there:
            return listener
        try:
            fresh = Listener(self._path)
        except OSError as error:
            log_once(logging.ERROR, "The socket is not there any more and cannot be made anew, trying on: %s", error)
            return listener
        LOGGER.warning("The socket %s was deleted and is made anew", self._path)
        listener.close()
        self._listener, self._there = fresh, True
        return fresh

    def _serve(self, conn: socket.socket, visit: Visit) -> None:
        def known() -> None:
            visit.known = True

        try:
            converse(conn, self._collector, self._processes, self._pass_on, self._room, known)
        except WireError as error:
            if error.reason != CLOSED:
                self._complain(error.reason, "A connection at %s is closed: %s", self._path, error)
        except Exception:  # noqa: BLE001 - one connection must not cost the others
            self._complain("serve", "A connection at %s is closed", self._path, traceback=True)
        finally:
            self._open.pop(conn, None)
            conn.close()

    def _pass_on(self, peer: Peer, records: Sequence[Record], until: float) -> None:
        self._guard(self._take, peer, records, until)

    def _guard(self, call: Callable[..., None], *args: object) -> None:
        """Call what must not raise here: a batch that cannot be added up would only come again."""
        try:
            call(*args)
        except Exception:  # noqa: BLE001 - see above
            self._complain("take", "What a serving process sent could not be added up", traceback=True)

    def _complain(self, key: str, message: str, *args: object, traceback: bool = False) -> None:
        """Count what went wrong; the log has each kind once."""
        log_once(logging.WARNING, message, *args, key=f"wire {key}", traceback=traceback)
        with suppress(Exception):
            self._broken()
