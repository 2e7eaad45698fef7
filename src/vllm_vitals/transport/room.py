"""What all connections of a collector may hold together, however many there are and whatever they send."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from vllm_vitals.transport.frames import TOO_MUCH, WireError, hang_up

MOST = 96 << 20
"""Bytes of frames that have come in part or wait to be read: a full batch of each connection, and some large steps."""


class Room:
    """Counts the bytes of each connection; beyond the limit, the one that holds most of an unfinished frame must go.

    A serving process that is hung up on comes back and sends again what was not taken.
    """

    def __init__(self, most: int = MOST) -> None:
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
