"""A web server that sends what it is told to, byte for byte and as slowly as it is told to."""

import socket
import ssl
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

HOST = "127.0.0.1"


def answer(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


class Peer:
    """Gives its answers one after another, then the last for ever; an iterable goes out piece by piece."""

    def __init__(self, *answers: bytes | Iterable[bytes], gap: float = 0.0, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[str] = []
        self._answers = list(answers)
        self._gap = gap
        self._tls = tls
        self._socket = socket.create_server((HOST, 0))
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def url(self, path: str = "/metrics", user: str = "") -> str:
        return f"{'https' if self._tls else 'http'}://{user}{HOST}:{self.port}{path}"

    def __enter__(self) -> Any:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(5)

    def _serve(self) -> None:
        while True:
            try:
                conn, _ = self._socket.accept()
            except OSError:
                return
            with suppress(OSError), conn:
                self._converse(self._tls.wrap_socket(conn, server_side=True) if self._tls else conn)

    def _converse(self, conn: socket.socket) -> None:
        with conn:
            conn.settimeout(5)
            request = b""
            while b"\r\n\r\n" not in request:
                piece = conn.recv(4096)
                if not piece:
                    return
                request += piece
            self.requests.append(request.decode())
            told = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
            for piece in [told] if isinstance(told, bytes) else told:
                conn.sendall(piece)
                time.sleep(self._gap)


def slowly(data: bytes) -> list[bytes]:
    return [data[index : index + 1] for index in range(len(data))]
