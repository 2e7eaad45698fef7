"""The server of the scrape endpoint while the system is short of what it needs."""

import errno
import selectors
import socket
import ssl
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
import trustme

from vllm_vitals.config.settings import PrometheusSettings
from vllm_vitals.exporters.prometheus import limits, server
from vllm_vitals.exporters.prometheus.message import Request, Response, plain
from vllm_vitals.exporters.prometheus.server import Server
from vllm_vitals.exporters.prometheus.tls import tls_context

HOST = "127.0.0.1"


class App:
    """Answers everything at once."""

    def answer(self, request: Request) -> Response:
        return plain(HTTPStatus.OK, request.path)

    def page(self, page: str, readers: int) -> Response:
        raise NotImplementedError

    def work_seconds(self) -> float:
        return 0.0


class Listener(socket.socket):
    """Has no descriptor for the first connection."""

    failed = False

    def accept(self) -> tuple[socket.socket, Any]:
        if not self.failed:
            self.failed = True
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


class Selector(selectors.DefaultSelector):  # type: ignore[valid-type,misc]
    """Has no memory for a listener that comes back, the first two times."""

    refusals = 2

    def __init__(self) -> None:
        super().__init__()
        self._seen: set[Any] = set()

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        if isinstance(fileobj, Listener) and fileobj in self._seen and self.refusals:
            self.refusals -= 1
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        self._seen.add(fileobj)
        return super().register(fileobj, events, data)


def get(port: int) -> bytes:
    with socket.create_connection((HOST, port), timeout=60) as client:
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        answer = b""
        while more := client.recv(4096):
            answer += more
    return answer


def test_each_address_is_listened_on_again_when_memory_was_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "DefaultSelector", Selector)
    monkeypatch.setattr(limits, "PAUSE_SECONDS", 0.01)
    listeners: list[socket.socket] = [Listener(), Listener()]
    for listener in listeners:
        listener.bind((HOST, 0))
        listener.listen()
    made: Server[str] = Server(listeners, App(), None)
    made.start()
    try:
        for port in made.ports * 2:
            assert get(port).startswith(b"HTTP/1.1 200")
    finally:
        made.close()


def test_a_client_cannot_ask_for_another_handshake(tmp_path: Path) -> None:
    certificate = trustme.CA().issue_cert(HOST)
    certificate.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "both.pem"))
    context = tls_context(PrometheusSettings(tls_cert=tmp_path / "both.pem", tls_key=tmp_path / "both.pem"))
    assert context.options & ssl.OP_NO_RENEGOTIATION
