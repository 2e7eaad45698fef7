"""The serving processes that a collector knows: which connection is whose, and what was taken from each."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from vllm_vitals.transport.protocol import TOO_MANY, TOO_MUCH, WireError, hang_up

MAX_ROOM_BYTES = 96 << 20
"""Bytes of frames that have come in part or wait to be read: a full batch of each connection, and some large steps."""


class Room:
    """Counts the bytes of each connection; beyond the limit, the one that holds most of an unfinished frame must go.

    A serving process that is hung up on comes back and sends again what was not taken.
    """

    def __init__(self, most: int = MAX_ROOM_BYTES) -> None:
        """`most`: bytes of all frames together."""
        self._most = most
        self._lock = threading.Lock()
        self._arriving: dict[socket.socket, int] = {}
        self._whole: dict[socket.socket, int] = {}
        self._put_out: set[socket.socket] = set()
        self._greetings = threading.Lock()
        self._batches = threading.Lock()

    @property
    def held(self) -> int:
        """Return how many bytes are held by connections that stay."""
        with self._lock:
            return self._total()

    def hold(self, conn: socket.socket, size: int) -> None:
        """Take note that so many bytes of an unfinished frame have come through a connection.

        Raises:
            WireError: when that is too much, and no other connection holds more.
        """
        with self._lock:
            self._arriving[conn] = size
            if self._total() <= self._most:
                return
            largest = max(self._arriving, key=self._arriving.__getitem__)
            del self._arriving[largest]
            self._put_out.add(largest)
        if largest is conn:
            raise self.reason
        hang_up(largest)

    @property
    def reason(self) -> WireError:
        """Return what is said of a connection that must go."""
        return WireError(TOO_MUCH, f"all frames that arrive may have {self._most} bytes together")

    @contextmanager
    def turn(self, conn: socket.socket, size: int, *, greeting: bool = False) -> Iterator[None]:
        """Wait until no other frame is being read: once read, it may take many times its bytes.

        A greeting waits for other greetings alone: it ends what an older connection of its process is at.
        """
        with self._lock:
            self._arriving.pop(conn, None)
            self._whole[conn] = size
        with self._greetings if greeting else self._batches:
            try:
                yield
            finally:
                with self._lock:
                    del self._whole[conn]

    def leave(self, conn: socket.socket) -> bool:
        """Forget a connection; tell whether it had to go."""
        with self._lock:
            self._arriving.pop(conn, None)
            had_to = conn in self._put_out
            self._put_out.discard(conn)
            return had_to

    def _total(self) -> int:
        return sum(self._arriving.values()) + sum(self._whole.values())


@dataclass(frozen=True)
class Peer:
    """A serving process: unique from one start to the next, its number among its like, its process id."""

    process: str
    name: str
    pid: int


class Process:
    """What is known of a peer."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.telling = threading.Lock()
        """Held while anything is passed on of this process, or that it is gone."""
        self.taken = 0
        """The highest sequence that was passed on; changes under `telling`."""
        self.connection: socket.socket | None = None
        self.left: float | None = None
        """Monotonic seconds since when it has no connection; `None` if it has one, or is known to be gone."""


class Processes:
    """Remembers the latest of them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._known: dict[str, Process] = {}
        """The one that came last is the last."""

    def enter(self, peer: Peer, connection: socket.socket) -> Process:
        """Let a connection be that of a process, in place of its former one.

        Raises:
            WireError: when too many processes have come in too short a time.
        """
        with self._lock:
            process = self._known.pop(peer.process, None) or Process(peer)
            self._make_room()
            self._known[peer.process] = process
            if process.connection is not None:
                hang_up(process.connection)  # it is not closed before its thread has been in `leave`
            process.connection, process.left = connection, None
        return process

    def leave(self, process: Process, connection: socket.socket) -> None:
        """Take note that a connection is closed, which need not be that of its process any more."""
        with self._lock:
            if process.connection is connection:
                process.connection, process.left = None, time.monotonic()

    def overdue(self, grace: float) -> Iterator[Process]:
        """Yield each process that has been without a connection for `grace` seconds, and is gone therefore.

        Nothing is passed on of it meanwhile: if it comes back now, it waits.
        """
        now = time.monotonic()
        with self._lock:
            away = [each for each in self._known.values() if each.left is not None and now - each.left >= grace]
        for process in away:
            with process.telling:
                if self._bury(process):
                    yield process

    def _bury(self, process: Process) -> bool:
        """Tell whether a process is still away; from now on it is known to be gone."""
        with self._lock:
            away, process.left = process.left is not None, None
            return away

    def _make_room(self) -> None:
        if len(self._known) < self._most:
            return
        gone = (key for key, each in self._known.items() if each.connection is None and each.left is None)
        key = next(gone, None)
        if key is None:
            raise WireError(TOO_MANY, f"{self._most} processes came, and none of them is gone for long")
        del self._known[key]
