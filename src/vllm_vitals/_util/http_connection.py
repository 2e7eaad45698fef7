"""A connection of which all steps share one deadline, and all that it receives one bound: through proxies, with TLS.

TLS is spoken in memory, so that it can be spoken through a proxy that is spoken to with TLS itself.
"""

import select
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, TypeVar

from vllm_vitals._util.deadline_socket import Deadline

CHUNK = 65536
MOST_RECEIVED = 2**20
"""Bytes that one exchange may receive, with all that TLS adds."""
SMALL = 512
REST = 0.001
"""Seconds to wait after a small piece for more: who sends byte by byte shall not keep a core busy."""

T = TypeVar("T")


class Line(Protocol):
    """A way to send and receive bytes."""

    def begin(self, deadline: Deadline) -> None:
        """Let an exchange begin that has to be over at a deadline."""

    def send(self, data: bytes) -> None:
        """Send all of it, or raise `OSError`."""

    def receive(self) -> bytes:
        """Return what comes next, nothing at the end."""

    def idle(self) -> bool:
        """Tell whether nothing has come, not even the end, since the latest exchange."""

    def close(self) -> None:
        """Let go of the connection."""


class Plain:
    """A socket."""

    def __init__(self, sock: socket.socket, deadline: Deadline) -> None:
        """Take over a socket that is connected."""
        self._sock = sock
        self.begin(deadline)

    def begin(self, deadline: Deadline) -> None:
        self._deadline = deadline
        self._left = MOST_RECEIVED
        self._small = False

    def send(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            self._sock.settimeout(self._deadline.left())
            left = left[self._sock.send(left) :]

    def receive(self) -> bytes:
        if self._small:
            time.sleep(min(REST, self._deadline.left()))
        self._sock.settimeout(self._deadline.left())
        came = self._sock.recv(CHUNK)
        self._small = len(came) < SMALL
        self._left -= len(came)
        if self._left < 0:
            raise ConnectionError(f"more than {MOST_RECEIVED} bytes came")
        return came

    def idle(self) -> bool:
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return not poll.poll(0)

    def close(self) -> None:
        self._sock.close()


class Tls:
    """TLS over another line."""

    def __init__(self, below: Line, context: ssl.SSLContext, host: str) -> None:
        """Shake hands, the certificate checked for a host; raise `OSError` when it does not come to that."""
        self._below = below
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self._do(self._tls.do_handshake)

    @property
    def version(self) -> str:
        """Return the version that was agreed on."""
        return self._tls.version() or "TLS"

    def begin(self, deadline: Deadline) -> None:
        self._below.begin(deadline)

    def send(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            piece = left[:CHUNK]
            left = left[self._do(lambda piece=piece: self._tls.write(piece)) :]  # type: ignore[misc]

    def receive(self) -> bytes:
        try:
            return self._do(lambda: self._tls.read(CHUNK))
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            return b""

    def idle(self) -> bool:
        if self._incoming.pending or not self._below.idle():
            return False  # TLS 1.3 sends tickets; whether these were all, nobody can tell without reading
        return not self._tls.pending()

    def close(self) -> None:
        self._below.close()

    def _do(self, action: Callable[[], T]) -> T:
        while True:
            try:
                done = action()
            except ssl.SSLWantReadError:
                self._flush()
                came = self._below.receive()
                if came:
                    self._incoming.write(came)
                else:
                    self._incoming.write_eof()
            except ssl.SSLError:
                with suppress(OSError):
                    self._flush()  # the alert, by which the peer learns of it
                raise
            else:
                self._flush()
                return done

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._below.send(self._outgoing.read())


def dial(host: str, port: int, deadline: Deadline) -> Plain:
    """Return a connection to the first address of a host that takes one.

    Raises:
        OSError: when there is none in time.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise OSError(f"not a host name: {error}") from error
    failed: OSError = ConnectionError(f"{host} has no address")
    for place, (family, kind, protocol, _, address) in enumerate(found):
        sock = None
        try:
            sock = socket.socket(family, kind, protocol)
            # One that does not answer leaves the others their part of the time.
            sock.settimeout(deadline.left() / (len(found) - place))
            sock.connect(address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            failed = error
            if sock is not None:
                sock.close()
        else:
            return Plain(sock, deadline)
    raise failed
