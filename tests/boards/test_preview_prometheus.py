"""What a Prometheus answers to a preview is bounded, and what it repeats of the credentials is hidden."""

import base64
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from vllm_vitals.preview import prometheus
from vllm_vitals.preview.prometheus import Prometheus, PrometheusError

EMPTY = b'{"data": {"resultType": "vector", "result": []}}'
PASSWORD = "S3cretPass99"  # noqa: S105
BASIC = base64.b64encode(f"user:{PASSWORD}".encode()).decode()


class Server(ThreadingHTTPServer):
    """Gives one answer, and keeps the credentials that came."""

    def __init__(self) -> None:
        self.status, self.location, self.text = 200, "", EMPTY
        self.proofs: list[str | None] = []
        super().__init__(("127.0.0.1", 0), Handler)

    def prometheus(self) -> Prometheus:
        return Prometheus(f"http://user:{PASSWORD}@127.0.0.1:{self.server_port}")


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.proofs.append(self.headers["Authorization"])
        self.send_response(self.server.status)
        if self.server.location:
            self.send_header("Location", self.server.location)
        self.end_headers()
        self.wfile.write(self.server.text)

    do_GET = do_POST  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def _serving() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


server = pytest.fixture(_serving, name="server")
other = pytest.fixture(_serving, name="other")


def test_credentials_are_for_the_given_host_alone(server: Server, other: Server) -> None:
    server.status, server.location = 302, f"http://127.0.0.1:{other.server_port}/"
    server.prometheus().check()
    assert server.proofs == [f"Basic {BASIC}"]
    assert other.proofs == [None]


def test_an_answer_has_a_bound(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "MOST_BYTES", len(EMPTY))
    server.prometheus().check()
    server.text = EMPTY + b" "
    with pytest.raises(PrometheusError, match=f"more than {len(EMPTY)} bytes"):
        server.prometheus().check()


def test_what_went_wrong_is_one_bounded_line_without_secrets(server: Server) -> None:
    server.status = 422
    server.text = b'{"error": "no\\u001b[31m ' + f"{PASSWORD} {BASIC} ".encode() + b"x" * 9999 + b'"}'
    with pytest.raises(PrometheusError) as raised:
        server.prometheus().check()
    said = str(raised.value)
    assert said.isprintable()
    assert len(said) <= prometheus.MOST_OF_A_MESSAGE
    assert PASSWORD not in said
    assert BASIC not in said
    assert said.startswith("no [31m ***")
