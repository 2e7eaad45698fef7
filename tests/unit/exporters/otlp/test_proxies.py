"""Pushes over HTTP through proxies of the environment, and on connections that are used again."""

import contextlib
import select
import socket
import ssl
import threading
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from tests.unit.otlp import HOST, HttpReceiver, Pusher, free_port, of, said
from vllm_vitals._util import http_connection as line_module

PASSWORD = "pr0xy/S3cret"  # noqa: S105
PROOF = f"Basic {b64encode(f'user:{PASSWORD}'.encode()).decode()}".encode()


class Proxy:
    """Passes on what it gets, to wherever the first line says."""

    def __init__(self, answer: bytes = b"") -> None:
        self.heads: list[bytes] = []
        self.port = 0
        self._answer = answer

    @contextlib.contextmanager
    def serve(self, tls: ssl.SSLContext | None = None) -> Iterator["Proxy"]:
        listener = socket.create_server((HOST, 0))
        self.port = listener.getsockname()[1]
        threads: list[threading.Thread] = []

        def speak(connection: socket.socket) -> None:
            with contextlib.suppress(OSError), connection:
                self._pass_on(tls.wrap_socket(connection, server_side=True) if tls else connection)

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    threads.append(threading.Thread(target=speak, args=(connection,), daemon=True))
                    threads[-1].start()

        acceptor = threading.Thread(target=accept, daemon=True)
        acceptor.start()
        try:
            yield self
        finally:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
            for thread in (acceptor, *threads):
                thread.join(10)

    def _pass_on(self, client: Any) -> None:
        got = b""
        while b"\r\n\r\n" not in got:
            got += client.recv(65536)
        self.heads.append(got.partition(b"\r\n\r\n")[0])
        if self._answer:
            client.sendall(self._answer)
            return
        method, where, _ = got.split(b" ", 2)
        port = int(where.rpartition(b":")[2].partition(b"/")[0])
        with client, socket.create_connection((HOST, port)) as server:
            if method == b"CONNECT":
                client.sendall(b"HTTP/1.1 200 Connection established\r\nVia: proxy\r\n\r\n")
            else:
                server.sendall(got)
            self._relay(client, server)

    @staticmethod
    def _relay(client: Any, server: Any) -> None:
        other = {client: server, server: client}
        while True:
            # What TLS holds of the client's no selector shows.
            ready = [client] if getattr(client, "pending", int)() else select.select(list(other), [], [], 30)[0]
            for each in ready:
                if not (came := each.recv(65536)):
                    return
                other[each].sendall(came)


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def ca(tmp_path: Path) -> tuple[trustme.CA, Path]:
    made = trustme.CA()
    made.cert_pem.write_to_path(tmp_path / "ca.pem")
    return made, tmp_path / "ca.pem"


def context(ca: trustme.CA) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert(HOST).configure_cert(made)
    return made


@pytest.mark.parametrize("proxy_tls", [False, True])
@pytest.mark.parametrize("receiver_tls", [False, True])
def test_a_push_goes_through_a_proxy(
    proxy_tls: bool,  # noqa: FBT001
    receiver_tls: bool,  # noqa: FBT001
    ca: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, file = ca
    receiver_context = context(made) if receiver_tls else None
    with (
        HttpReceiver().serve(receiver_context) as receiver,
        Proxy().serve(context(made) if proxy_tls else None) as proxy,
    ):
        url = f"{'https' if proxy_tls else 'http'}://user:{PASSWORD.replace('/', '%2F')}@{HOST}:{proxy.port}"
        monkeypatch.setenv(f"{receiver.scheme}_proxy", url)
        pusher = of(receiver, tls_ca=file, headers={"x-a": "b"})
        for _ in range(2):
            assert pusher.push().ok
        pusher.close()
    (head,) = proxy.heads
    to = f"{HOST}:{receiver.port}".encode()
    first = b"CONNECT " + to if receiver_tls else b"POST http://" + to + b"/v1/metrics"
    assert head.startswith(first + b" HTTP/1.1\r\n")
    assert b"\r\nProxy-Authorization: " + PROOF in head
    assert (b"x-a" in head) is not receiver_tls
    assert len(receiver.received) == 2
    sent = receiver.received[-1]
    assert (sent.headers["x-a"], sent.headers["accept-encoding"]) == ("b", "identity")
    if receiver_tls:
        assert "proxy-authorization" not in sent.headers


@pytest.mark.parametrize(("spared", "through"), [(HOST, 0), ("127.0.0.0/8", 0), ("*", 0), ("other.example", 1)])
def test_a_host_that_is_spared_the_proxy(spared: str, through: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with HttpReceiver().serve() as receiver, Proxy().serve() as proxy:
        monkeypatch.setenv("http_proxy", f"{HOST}:{proxy.port}")
        monkeypatch.setenv("no_proxy", spared)
        pusher = of(receiver)
        assert pusher.push().ok
        pusher.close()
    assert len(proxy.heads) == through


def test_a_proxy_that_refuses_is_told_without_its_password(
    ca: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refusal = f"HTTP/1.1 407 No {PASSWORD}\r\nContent-Length: 0\r\n\r\n".encode()
    with Proxy(refusal).serve() as proxy:
        url = f"http://user:{PASSWORD.replace('/', '%2F')}@{HOST}:{proxy.port}"
        monkeypatch.setenv("https_proxy", url)
        pusher = Pusher(f"https://{HOST}:{free_port()}", tls_ca=ca[1])
        answer = pusher.push()
        pusher.close()
    assert f"the proxy http://{HOST}:{proxy.port} answered HTTP 407 No ***" in answer.error
    assert PASSWORD not in caplog.text


def test_a_proxy_that_nobody_could_use_is_an_error_that_names_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("http_proxy", f"socks5://user:{PASSWORD}@{HOST}:1080")
    answer = Pusher("http://collector.example:4318").push()
    assert (answer.ok, answer.permanent) == (False, True)
    assert f"the proxy socks5://{HOST}:1080 is no address: everything before the @" in answer.error
    assert PASSWORD not in said(caplog.records)[0][1]


def test_a_connection_is_used_again_until_its_peer_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    dialled: list[int] = []
    plain = line_module.Plain.__init__

    def init(*args: Any) -> None:
        dialled.append(1)
        plain(*args)

    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr(line_module.Plain, "__init__", init)
    port = free_port()
    with HttpReceiver().serve(port=port) as receiver:
        pusher = of(receiver)
        for _ in range(3):
            assert pusher.push().ok
        assert len(dialled) == 1
        pusher.exporter._transport._line._sock.shutdown(socket.SHUT_RDWR)  # type: ignore[union-attr]
        assert pusher.push().ok
        assert len(dialled) == 2
        pusher.close()


def test_an_address_that_does_not_answer_leaves_time_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    with HttpReceiver().serve() as receiver:
        good = (socket.AF_INET, socket.SOCK_STREAM, 6, "", (HOST, receiver.port))
        bad = (socket.AF_INET, socket.SOCK_STREAM, 6, "", (HOST, free_port()))
        monkeypatch.setenv("NO_PROXY", "*")
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [bad, good])
        pusher = Pusher(f"http://two.example:{receiver.port}")
        assert pusher.push().ok
        pusher.close()
