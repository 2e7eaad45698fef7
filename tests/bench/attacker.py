"""Clients that harm, in a process of their own: each kind does one thing to an endpoint, over and over."""

import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

HOST = "127.0.0.1"
PATIENCE = 5.0
REST_SECONDS = 0.002
"""Between two attacks of one client: without it, what is measured is who gets the cores of this machine."""

Attack = Callable[[socket.socket], None]


def headers(connection: socket.socket) -> None:
    """Send a request with six megabytes of Accept headers."""
    connection.sendall(b"GET /metrics HTTP/1.1\r\n")
    for _ in range(90):
        connection.sendall(b"Accept: " + b"a/b;q=0.1," * 6500 + b"\r\n")
    connection.sendall(b"\r\n")
    connection.recv(65536)


def trickle(connection: socket.socket) -> None:
    """Send a request that never ends, a byte every three seconds."""
    for byte in b"GET /metrics HTTP/1.1\r\n" + b"a" * 1000:
        connection.sendall(bytes([byte]))
        time.sleep(3.0)


def connect(_: socket.socket) -> None:
    """Connect and go."""


def silent(connection: socket.socket) -> None:
    """Connect and say nothing."""
    connection.recv(1)


def unread(connection: socket.socket) -> None:
    """Ask for the page and never read it."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
    time.sleep(1.0)


def scrape(connection: socket.socket) -> None:
    """Ask for the page and read it, at once again."""
    connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
    while connection.recv(65536):
        pass


ATTACKS: dict[str, tuple[Attack, int]] = {
    "headers": (headers, 16),
    "tricklers": (trickle, 132),
    "connects": (connect, 8),
    "silent": (silent, 132),
    "unread": (unread, 64),
    "scrapes": (scrape, 8),
}
"""By name: what one client does, and how many clients there are."""


def repeat(attack: Attack, port: int) -> None:
    """Attack without end, with a new connection each time."""
    while True:
        with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=PATIENCE) as connection:
            attack(connection)
        time.sleep(REST_SECONDS)


@contextlib.contextmanager
def attacking(port: int, name: str) -> Iterator[None]:
    """Attack until the block is left.

    Raises:
        RuntimeError: when the attackers gave up.
    """
    process = subprocess.Popen([sys.executable, "-m", __name__, str(port), name])
    try:
        yield
        if process.poll() is not None:
            raise RuntimeError("the attackers gave up")
    finally:
        process.kill()
        process.wait()


def main(port: int, name: str) -> None:
    """Let all clients of a kind attack."""
    attack, clients = ATTACKS[name]
    for _ in range(clients):
        threading.Thread(target=repeat, args=(attack, port), daemon=True).start()
    threading.Event().wait()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
