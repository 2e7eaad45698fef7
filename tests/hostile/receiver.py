"""A receiver over a real socket that takes pushes and answers whatever bytes a test gives it, and what may not be told."""

import base64
import contextlib
import gzip
import html
import logging
import re
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from tests.unit.builders import MODEL
from tests.unit.otlp import HOST, points

TOKENS = ("vllm.tokens.generation", frozenset({("model_name", MODEL), ("engine", "0")}))
PIECE = 8
"""Characters in a row of a secret that may not be told."""


class Scripted:
    """Answers each request with the next bytes, in pieces, and hangs up."""

    def __init__(self) -> None:
        self.script: list[bytes] = []
        self.taken: list[float] = []
        """Tokens in each push, taken or not."""
        self.heads: list[bytes] = []
        self._hung_up = threading.Semaphore(0)
        self.port = 0

    @contextlib.contextmanager
    def serve(self) -> Iterator["Scripted"]:
        listener = socket.create_server((HOST, 0))
        self.port = listener.getsockname()[1]
        thread = threading.Thread(target=self._run, args=(listener,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
            thread.join(30)

    def answer_with(self, *pieces: bytes) -> None:
        self.script = list(pieces)

    def wait(self) -> None:
        """Wait until the latest connection has ended here."""
        assert self._hung_up.acquire(timeout=60)

    def _run(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError, ConnectionError):
                self._speak(connection)
            self._hung_up.release()

    def _speak(self, connection: socket.socket) -> None:
        connection.settimeout(60)
        request = b""
        while not (found := re.search(rb"\r\n\r\n", request)):
            request += _some(connection)
        head, body = request[: found.start()], request[found.end() :]
        length = int(re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)[1])  # type: ignore[index]
        while len(body) < length:
            body += _some(connection)
        if b"gzip" in head.lower():
            body = gzip.decompress(body)
        self.heads.append(head)
        held = points(ExportMetricsServiceRequest.FromString(body)).get(TOKENS)
        self.taken.append(held.as_double if held else 0.0)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in self.script:
            connection.sendall(piece)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65536):
            pass


def _some(connection: socket.socket) -> bytes:
    if not (came := connection.recv(1 << 20)):
        raise ConnectionError
    return came


@contextlib.contextmanager
def listening() -> Iterator[list[str]]:
    """Give the lines that are logged by us, as a handler writes them."""
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(self.format(record))

    handler, logger = Lines(), logging.getLogger("vllm.vitals")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def senders() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "vitals-push"]


def readings(text: str) -> Iterator[str]:
    """Yield what somebody who reads a log may make of a text."""
    decoders: tuple[Callable[[str], str], ...] = (unquote_plus, html.unescape, _unescaped)
    yield text
    for first in decoders:
        yield first(text)
        for second in decoders:
            yield second(first(text))
    for word in re.findall(r"[A-Za-z0-9+/=_-]{8,}", text):
        for begin in range(4):
            plain = word[begin:].rstrip("=").replace("-", "+").replace("_", "/")
            with contextlib.suppress(ValueError):
                yield base64.b64decode(plain[: len(plain) // 4 * 4]).decode("latin-1")


def _unescaped(text: str) -> str:
    plain = re.sub(r"\\u([0-9a-fA-F]{4})", lambda found: chr(int(found[1], 16)), text)
    return re.sub(r"\\(.)", r"\1", plain)


def told(secret: str, text: str) -> str:
    """Return what a text tells of a secret: any characters in a row that are also in it, `""` for nothing."""
    hidden = _bare(secret)
    size = min(PIECE, len(hidden))
    wanted = {hidden[place : place + size] for place in range(len(hidden) - size + 1)}
    for reading in readings(text):
        bare = _bare(reading)
        for place in range(len(bare) - size + 1):
            if bare[place : place + size] in wanted:
                return bare[place : place + size]
    return ""


def _bare(text: str) -> str:
    return re.sub(r"[\s+]", "", text).lower()


def json_escaped(text: str) -> str:
    return "".join(f"\\u{ord(letter):04x}" for letter in text)


def entities(text: str) -> str:
    return "".join(f"&#{ord(letter)};" for letter in text)


def hex_entities(text: str) -> str:
    return "".join(f"&#x{ord(letter):X};" for letter in text)


def percents(text: str) -> str:
    return "".join(f"%{byte:02x}" for byte in text.encode())


def loud_percents(text: str) -> str:
    return percents(text).upper()


def in_base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def in_base64_amid(text: str) -> str:
    return base64.urlsafe_b64encode(f"user:{text}!".encode()).decode()


def spaced(text: str) -> str:
    return " \t".join(text)


def slashed(text: str) -> str:
    return text.replace("/", "\\/").replace('"', '\\"')


FORMS: tuple[Callable[[str], str], ...] = (
    str, str.upper, str.lower, html.escape, json_escaped, entities, hex_entities, percents, loud_percents, in_base64,
    in_base64_amid, spaced, slashed, lambda text: percents(percents(text)), lambda text: entities(json_escaped(text)),
)  # fmt: skip
"""Ways in which a peer may give a secret back."""


def cut(text: str, first: int, last: int) -> Any:
    """Return a part of a text by two numbers of any size."""
    begin, end = sorted((first % (len(text) + 1), last % (len(text) + 1)))
    return text[begin:end]
