"""The serving processes that a collector knows: which connection is whose, and what was taken from each."""

import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from vllm_vitals.transport.frames import TOO_MANY, WireError, hang_up


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
