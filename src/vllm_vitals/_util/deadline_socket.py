"""A connection whose every step shares one deadline: a peer that trickles outlasts any timeout of a single read."""

import io
import socket
import ssl
import time
from typing import Any


class Deadline:
    """The end of a time that several steps share."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Return the seconds that are left; raise `TimeoutError` when there are none."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left


class TooMuchError(Exception):
    """More came than may."""


class _Incoming(io.RawIOBase):
    """What a socket receives."""

    def __init__(self, sock: socket.socket, deadline: Deadline, most: int) -> None:
        self._sock = sock
        self._deadline = deadline
        self.left = most
        """Bytes that may still come."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self.left <= 0:
            raise TooMuchError
        self._sock.settimeout(self._deadline.left())
        count = self._sock.recv_into(buffer, min(len(buffer), self.left))
        self.left -= count
        return count


class Wire:
    """A socket as far as `http.client` uses one; whoever opened it closes it."""

    def __init__(self, sock: socket.socket, deadline: Deadline, most: int) -> None:
        """`most`: bytes that may come, until `allow` says otherwise."""
        self._sock = sock
        self._deadline = deadline
        self._incoming = _Incoming(sock, deadline, most)

    def allow(self, more: int) -> None:
        """Let so many bytes come from here on."""
        self._incoming.left = more

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Return what is received, as a file."""
        return io.BufferedReader(self._incoming)

    def sendall(self, data: bytes) -> None:
        """Send."""
        self._sock.settimeout(self._deadline.left())
        self._sock.sendall(data)

    def close(self) -> None:
        """Do nothing: `http.client` closes it before it has read the answer."""


def connect(host: str, port: int, deadline: Deadline, context: ssl.SSLContext | None) -> socket.socket:
    """Return a connection to the first address of a host that takes one; with a context, over TLS.

    Raises:
        OSError: when there is none in time.
    """
    sock = _plain(host, port, deadline)
    if context is None:
        return sock
    try:
        sock.settimeout(deadline.left())
        return context.wrap_socket(sock, server_hostname=host)
    except BaseException:
        sock.close()
        raise


def _plain(host: str, port: int, deadline: Deadline) -> socket.socket:
    failed: OSError = ConnectionError(f"{host} has no address")
    for *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        try:
            return socket.create_connection((str(address[0]), port), deadline.left())
        except OSError as error:
            failed = error
    raise failed
