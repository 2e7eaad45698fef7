"""The connections of the scrape endpoint: the steps of each exchange, and the limits on their number.

No method waits: each step goes as far as the socket allows.
"""

import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from enum import Enum, auto
from http import HTTPStatus
from selectors import EVENT_READ, EVENT_WRITE

from vllm_vitals.exporters.prometheus import limits
from vllm_vitals.exporters.prometheus.message import RefusedError, Request, Response, head_end, parse

MAX_READS_AT_ONCE = 16
PIECE_BYTES = 65536
MAX_PIECES_AT_ONCE = 4
DISCARDED = bytearray(PIECE_BYTES)
"""A buffer for bytes that are thrown away."""
RECEIVE = socket.socket.recv_into
"""Receives the raw bytes of a connection: under TLS, the encrypted ones."""
IPV4_MAPPED = bytes(10) + b"\xff\xff"


class State(Enum):
    """The state of an exchange."""

    HANDSHAKE = auto()
    READING = auto()
    WAITING = auto()
    """For a page. In this state the server does not watch the connection."""
    ANSWERING = auto()
    LINGERING = auto()
    """The response is sent, and the client may still send; see `limits.LINGER_SECONDS`."""
    GONE = auto()


class Client:
    """A connection with its one exchange. An end of the exchange by the client raises an `OSError`."""

    __slots__ = (
        "_discarded",
        "_parts",
        "_received",
        "_tls",
        "body",
        "connection",
        "deadline",
        "exchange_deadline",
        "more",
        "peer",
        "reads",
        "state",
        "wants",
        "watched",
    )

    def __init__(self, connection: socket.socket, peer: bytes, now: float) -> None:
        """Take a non-blocking socket, and its address as `peer_of` returns it."""
        self.connection = connection
        self.peer = peer
        self.exchange_deadline = now + limits.EXCHANGE_SECONDS
        self.state = State.HANDSHAKE
        self.deadline = now + limits.HANDSHAKE_SECONDS
        """Deadline of the present state."""
        self.wants = EVENT_READ
        """The selector event that it waits for."""
        self.watched = False
        """Whether a selector watches it."""
        self.reads = 0
        """Number of reads and handshake steps."""
        self.more = False
        """Whether it may send more after the head of its request."""
        self.body = b""
        """The body of its response, which other clients may share."""
        self._received = bytearray()
        self._parts: list[memoryview] = []
        self._discarded = 0
        self._tls = connection if isinstance(connection, ssl.SSLSocket) else None
        if self._tls is None:
            self.start_reading(now)

    @property
    def silent(self) -> bool:
        """Return whether no byte of a request has come."""
        return not self._received

    def start_reading(self, now: float) -> None:
        """Start reading the head of a request."""
        self.state, self.deadline, self.wants = State.READING, now + limits.HEAD_SECONDS, EVENT_READ

    def continue_handshake(self) -> bool:
        """Continue the TLS handshake and return whether it is complete."""
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
        """Read the available bytes. Return the request, or `None` while its head is incomplete.

        Raises:
            RefusedError: when it is not a valid request.
            ConnectionError: when the client has left without a request.
        """
        self.reads += 1
        for _ in range(MAX_READS_AT_ONCE):
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

    def start_response(self, response: Response) -> None:
        """Start sending a response."""
        self.state, self.deadline, self.wants = State.ANSWERING, self.exchange_deadline, EVENT_WRITE
        bodiless = self._received.lstrip(b"\r\n").startswith(b"HEAD ")  # also of a refused request
        self._received = bytearray()
        self.body = b"" if bodiless else response.body
        parts = [memoryview(response.head() + self.body[:PIECE_BYTES]), memoryview(self.body)[PIECE_BYTES:]]
        self._parts = [part for part in parts if part]

    def write(self) -> bool:
        """Send as much as the socket accepts. Return whether all is sent."""
        for _ in range(MAX_PIECES_AT_ONCE):
            if not self._parts:
                return True
            part = self._parts[0]
            try:
                sent = self.connection.send(part[:PIECE_BYTES])
            except (BlockingIOError, ssl.SSLWantWriteError):
                self.wants = EVENT_WRITE
                return False
            except ssl.SSLWantReadError:
                self.wants = EVENT_READ
                return False
            self._parts[:1] = [part[sent:]] if sent < len(part) else []
        return not self._parts

    def linger(self, now: float) -> None:
        """End our side of the connection, and wait for the client to end its side."""
        self.state, self.wants = State.LINGERING, EVENT_READ
        self.deadline = min(self.exchange_deadline, now + limits.LINGER_SECONDS)
        self._parts, self.body = [], b""
        self._finish()

    @property
    def unread(self) -> bool:
        """Return whether unread bytes have come. Closing now would reset the connection, and the client might lose its response."""
        with suppress(OSError):
            return bool(RECEIVE(self.connection, DISCARDED, 1, socket.MSG_PEEK))
        return False

    def discard(self) -> bool:
        """Discard bytes that the client still sends, under TLS without decryption. Return whether the connection can close."""
        try:
            count = RECEIVE(self.connection, DISCARDED)
        except BlockingIOError:
            return False
        self._discarded += count
        return not count or self._discarded > limits.LINGER_BYTES

    def close(self) -> None:
        """Close the connection, in any state."""
        if self.state is not State.LINGERING:
            self._finish()
        self.state = State.GONE
        self.connection.close()

    def _finish(self) -> None:
        """End our side. Closing alone is not enough: the child of a fork may hold a copy of the connection."""
        if self._tls is not None and self.state is not State.HANDSHAKE:
            with suppress(OSError, ValueError):
                self._tls.unwrap()
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)


def peer_of(host: str) -> bytes:
    """Return the key that all connections of one client share: the IPv4 address, or the /64 network of an IPv6 address."""
    if ":" not in host:
        return socket.inet_pton(socket.AF_INET, host)
    packed = socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
    return packed[12:] if packed.startswith(IPV4_MAPPED) else packed[:8]


class Address:
    """The connections of one address, each kind from oldest to newest."""

    __slots__ = ("answering", "unfinished", "waiting")

    def __init__(self) -> None:
        self.unfinished: dict[Client, None] = {}
        """Those without a complete request, or with a complete response."""
        self.answering: dict[Client, None] = {}
        self.waiting: dict[Client, None] = {}

    def __len__(self) -> int:
        return len(self.unfinished) + len(self.answering) + len(self.waiting)

    def kind(self, state: State) -> dict[Client, None]:
        """Return the connections of the kind of this state."""
        if state is State.WAITING:
            return self.waiting
        return self.answering if state is State.ANSWERING else self.unfinished

    def oldest(self) -> Client | None:
        """Return the connection to close first, if there is one. Those that wait for a page have their own limit."""
        return next(iter(self.unfinished), None) or next(iter(self.answering), None)


class Slots:
    """All connections, and which of them to close when another one comes."""

    def __init__(self) -> None:
        self._addresses: dict[bytes, Address] = {}
        self._count = 0
        self._waiting = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Client]:
        for address in self._addresses.values():
            yield from address.unfinished
            yield from address.answering
            yield from address.waiting

    def surplus(self, peer: bytes) -> Client | None:
        """Return a connection to close before another one of this address is accepted, or `None`."""
        own = self._addresses.get(peer)
        if own is not None and len(own) >= limits.ADDRESS_CLIENTS:
            return own.oldest()
        if self._count < limits.CLIENTS:
            return None
        # The address with the most connections loses one, so one client cannot displace the others.
        largest = max(self._addresses.values(), key=lambda address: len(address.unfinished) + len(address.answering))
        return largest.oldest()

    def idle(self) -> Client | None:
        """Return an old connection without a complete request, or `None`."""
        largest = max(self._addresses.values(), key=lambda address: len(address.unfinished), default=None)
        return next(iter(largest.unfinished), None) if largest else None

    def may_wait(self, peer: bytes) -> bool:
        """Return whether another request of this address may wait for a page."""
        return self._waiting < limits.WAITING and len(self._addresses[peer].waiting) < limits.ADDRESS_WAITING

    def enter(self, client: Client) -> None:
        """Add a connection."""
        self._addresses.setdefault(client.peer, Address()).kind(client.state)[client] = None
        self._count += 1
        self._waiting += client.state is State.WAITING

    def leave(self, client: Client) -> None:
        """Remove a connection. Its state must be the same as when it was added."""
        address = self._addresses[client.peer]
        del address.kind(client.state)[client]
        self._count -= 1
        self._waiting -= client.state is State.WAITING
        if not len(address):
            del self._addresses[client.peer]
