"""A connection whose every step shares one deadline: a peer that trickles outlasts any timeout of a single read."""

import io
import socket
import ssl
import time
from functools import cache
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


class _Incoming(io.RawIOBase):
    """What a socket receives."""

    def __init__(self, sock: socket.socket, deadline: Deadline) -> None:
        self._sock = sock
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._sock.settimeout(self._deadline.left())
        return self._sock.recv_into(buffer)


class Wire:
    """A socket as far as `http.client` uses one; whoever opened it closes it."""

    def __init__(self, sock: socket.socket, deadline: Deadline) -> None:
        self._sock = sock
        self._deadline = deadline

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Return what is received, as a file."""
        return io.BufferedReader(_Incoming(self._sock, self._deadline))

    def sendall(self, data: bytes) -> None:
        """Send."""
        self._sock.settimeout(self._deadline.left())
        self._sock.sendall(data)

    def close(self) -> None:
        """Do nothing: `http.client` closes it before it has read the answer."""


def connect(host: str, port: int, deadline: Deadline, *, tls: bool) -> socket.socket:
    """Return a connection to the first address of a host that takes one, with a certificate that is trusted.

    Raises:
        OSError: when there is none in time.
    """
    sock = _plain(host, port, deadline)
    if not tls:
        return sock
    try:
        sock.settimeout(deadline.left())
        return _context().wrap_socket(sock, server_hostname=host)
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


@cache
def _context() -> ssl.SSLContext:
    """Return a context with the system's roots, which hold the interpreter for tens of milliseconds to load."""
    return ssl.create_default_context()
