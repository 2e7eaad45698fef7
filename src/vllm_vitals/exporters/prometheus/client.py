"""One connection: its handshake, its request's head and its answer, each as far as it goes without waiting."""

import socket
import ssl
from contextlib import suppress
from enum import Enum, auto
from http import HTTPStatus
from selectors import EVENT_READ, EVENT_WRITE

from vllm_vitals.exporters.prometheus import limits
from vllm_vitals.exporters.prometheus.message import Answer, RefusedError, Request, head_end, parse

READS_AT_ONCE = 16
PIECE = 65536
PIECES_AT_ONCE = 4
WASTE = bytearray(PIECE)
"""Where bytes go that nobody reads."""
RECEIVE = socket.socket.recv_into
"""Receives what the connection carries, which under TLS is not what the client says."""
IPV4_MAPPED = bytes(10) + b"\xff\xff"


class State(Enum):
    """How far an exchange has come."""

    SHAKING = auto()
    READING = auto()
    WAITING = auto()
    """For a page: the server does not listen to it in this state."""
    ANSWERING = auto()
    LINGERING = auto()
    """It has its answer and may still send; see `limits.LINGER_SECONDS`."""
    GONE = auto()


class Client:
    """A client and its one exchange. Whatever it does that ends the exchange raises an `OSError`."""

    __slots__ = ("_discarded", "_parts", "_received", "_tls", "body", "connection", "due", "end", "more", "peer", "reads",
                 "state", "wants", "watched")  # fmt: skip

    def __init__(self, connection: socket.socket, peer: bytes, now: float) -> None:
        """Take a connection that does not block, from an address as `peer_of` returns it."""
        self.connection = connection
        self.peer = peer
        self.end = now + limits.EXCHANGE_SECONDS
        self.state = State.SHAKING
        self.due = now + limits.HANDSHAKE_SECONDS
        """When its present state must be over."""
        self.wants = EVENT_READ
        """What it waits for, as a selector's event."""
        self.watched = False
        """Whether a selector tells when it can go on."""
        self.reads = 0
        """How often it was read from or shook hands."""
        self.more = False
        """Whether it may still send after its request's head."""
        self.body = b""
        """The body of its answer, which other clients may share."""
        self._received = bytearray()
        self._parts: list[memoryview] = []
        self._discarded = 0
        self._tls = connection if isinstance(connection, ssl.SSLSocket) else None
        if self._tls is None:
            self.listen(now)

    @property
    def silent(self) -> bool:
        """Return whether nothing of a request has come."""
        return not self._received

    def listen(self, now: float) -> None:
        """Begin with the head of a request."""
        self.state, self.due, self.wants = State.READING, now + limits.HEAD_SECONDS, EVENT_READ

    def shake(self) -> bool:
        """Go on with the TLS handshake and return whether it is over."""
        self.reads += 1
        try:
            if self._tls is not None:
                self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self.wants = EVENT_READ
        except ssl.SSLWantWriteError:
            self.wants = EVENT_WRITE
        else:
            return True
        return False

    def read(self) -> Request | None:
        """Read what there is and return the request, `None` while its head is not complete.

        Raises:
            RefusedError: when it will not be one.
            ConnectionError: when the client has left without a word.
        """
        self.reads += 1
        for _ in range(READS_AT_ONCE):
            known = len(self._received)
            try:
                piece = self.connection.recv(limits.HEAD_BYTES + 1 - known)
            except (BlockingIOError, ssl.SSLWantReadError):
                return None
            if not piece and known:
                raise RefusedError(HTTPStatus.BAD_REQUEST, "The request ended before its head did")
            if not piece:
                raise ConnectionResetError
            self._received += piece
            if end := head_end(self._received, known):
                request = parse(bytes(self._received[:end]), more=len(self._received) > end)
                self.more = request.more
                return request
        return None

    def answer(self, answer: Answer) -> None:
        """Begin with the answer."""
        self.state, self.due, self.wants = State.ANSWERING, self.end, EVENT_WRITE
        bodiless = self._received.lstrip(b"\r\n").startswith(b"HEAD ")  # of a request that is refused, too
        self._received = bytearray()
        self.body = b"" if bodiless else answer.body
        parts = [memoryview(answer.head() + self.body[:PIECE]), memoryview(self.body)[PIECE:]]
        self._parts = [part for part in parts if part]

    def write(self) -> bool:
        """Send as much as can be sent now and return whether it was the last of it."""
        for _ in range(PIECES_AT_ONCE):
            if not self._parts:
                return True
            part = self._parts[0]
            try:
                sent = self.connection.send(part[:PIECE])
            except (BlockingIOError, ssl.SSLWantWriteError):
                self.wants = EVENT_WRITE
                return False
            except ssl.SSLWantReadError:
                self.wants = EVENT_READ
                return False
            self._parts[:1] = [part[sent:]] if sent < len(part) else []
        return not self._parts

    def linger(self, now: float) -> None:
        """Say that nothing more will come."""
        self.state, self.wants = State.LINGERING, EVENT_READ
        self.due = min(self.end, now + limits.LINGER_SECONDS)
        self._parts, self.body = [], b""
        self._finish()

    @property
    def unread(self) -> bool:
        """Return whether something of it has come that was not read: to hang up then would take its answer away."""
        with suppress(OSError):
            return bool(RECEIVE(self.connection, WASTE, 1, socket.MSG_PEEK))
        return False

    def discard(self) -> bool:
        """Throw away what it still sends, under TLS without deciphering it, and return whether that was enough."""
        try:
            count = RECEIVE(self.connection, WASTE)
        except BlockingIOError:
            return False
        self._discarded += count
        return not count or self._discarded > limits.LINGER_BYTES

    def close(self) -> None:
        """Close the connection, whatever state it is in."""
        if self.state is not State.LINGERING:
            self._finish()
        self.state = State.GONE
        self.connection.close()

    def _finish(self) -> None:
        """End our side. The child of a fork may hold a copy of the connection, so to close it is not enough."""
        if self._tls is not None and self.state is not State.SHAKING:
            with suppress(OSError, ValueError):
                self._tls.unwrap()
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)


def peer_of(host: str) -> bytes:
    """Return what all connections of one client share: an IPv4 address, or the network of an IPv6 address (/64)."""
    if ":" not in host:
        return socket.inet_pton(socket.AF_INET, host)
    packed = socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
    return packed[12:] if packed.startswith(IPV4_MAPPED) else packed[:8]
