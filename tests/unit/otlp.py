"""Receivers of OTLP over real sockets, good and bad ones, and what pushes to them."""

import contextlib
import gzip
import itertools
import os
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import grpc
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import (
    MetricsServiceServicer,
    add_MetricsServiceServicer_to_server,
)

from tests.waiting import PATIENCE
from vllm_vitals.aggregation.aggregator import Aggregator
from vllm_vitals.config.settings import Settings
from vllm_vitals.exporters.otlp.encode import Push, encode_request
from vllm_vitals.exporters.otlp.exporter import OtlpExporter, otlp_exporter
from vllm_vitals.exporters.otlp.response import PushResult

HOST = "127.0.0.1"
VERSION = "0.32.0"
AGE = 10.0

_PORTS = itertools.chain(range(10_000 + os.getpid() * 97 % 20_000, 32_000), range(10_000, 32_000))
_TAKEN: list[socket.socket] = []

Key = tuple[str, frozenset[tuple[str, str]]]


class Received(NamedTuple):
    """One push as a receiver got it."""

    path: str
    headers: dict[str, str]
    message: Any
    time: float


class Reply(NamedTuple):
    """What an HTTP receiver answers."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = {}  # noqa: RUF012 - never changed
    type: str = "application/x-protobuf"


class Refusal(NamedTuple):
    """What a gRPC receiver answers instead of taking a push."""

    code: grpc.StatusCode
    details: str = ""
    trailers: tuple[tuple[str, bytes], ...] = ()


class Receiver:
    """What receivers share: the pushes they got, and what they answer, one after another and then the last for ever."""

    scheme = "http"
    protocol = ""

    def __init__(self, *answers: Any) -> None:
        self.received: list[Received] = []
        self.answers: list[Any] = list(answers)
        self.binary: dict[str, bytes] = {}
        self.port = 0

    @property
    def endpoint(self) -> str:
        return f"{self.scheme}://{HOST}:{self.port}"

    @property
    def last(self) -> dict[Key, Any]:
        return points(self.received[-1].message)

    def answer(self) -> Any:
        if not self.answers:
            return None
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


class HttpReceiver(Receiver):
    """An OTLP receiver over HTTP."""

    protocol = "http/protobuf"

    @contextlib.contextmanager
    def serve(self, tls: ssl.SSLContext | None = None, port: int = 0) -> Iterator["HttpReceiver"]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 5

            def setup(self) -> None:
                # The handshake is made here, so that one that never ends holds no one else up.
                if tls is not None:
                    self.request = tls.wrap_socket(self.request, server_side=True)
                super().setup()

            def finish(self) -> None:
                with contextlib.suppress(OSError):
                    super().finish()
                if tls is not None:
                    self.request.close()

            def do_POST(self) -> None:
                receiver._take(self)

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                pass

        if tls is not None:
            self.scheme = "https"
        with Server((HOST, port), Handler) as server:
            self.port = server.server_port
            thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
            thread.start()
            try:
                yield self
            finally:
                server.shutdown()
                thread.join(5)

    def _take(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        if handler.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        headers = {name.lower(): value for name, value in handler.headers.items()}
        message = ExportMetricsServiceRequest.FromString(body)
        reply = self.answer() or Reply(body=ExportMetricsServiceResponse().SerializeToString())
        self.received.append(Received(handler.path, headers, message, time.monotonic()))
        handler.send_response(reply.status)
        for name, value in {"Content-Type": reply.type, **reply.headers}.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(reply.body)))
        handler.end_headers()
        handler.wfile.write(reply.body)


class GrpcReceiver(Receiver, MetricsServiceServicer):
    """An OTLP receiver over gRPC."""

    protocol = "grpc"

    @contextlib.contextmanager
    def serve(self, credentials: grpc.ServerCredentials | None = None, port: int = 0) -> Iterator["GrpcReceiver"]:
        workers = ThreadPoolExecutor(4)
        server = grpc.server(workers, options=(("grpc.so_reuseport", 0),))
        add_MetricsServiceServicer_to_server(self, server)
        address = f"{HOST}:{port}"
        if credentials is None:
            self.port = server.add_insecure_port(address)
        else:
            self.scheme = "https"
            self.port = server.add_secure_port(address, credentials)
        server.start()
        try:
            yield self
        finally:
            server.stop(0).wait(5)
            workers.shutdown()

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - the service's name for it
        answer = self.answer()
        headers = {name: value for name, value in context.invocation_metadata() if isinstance(value, str)}
        self.binary = {name: value for name, value in context.invocation_metadata() if isinstance(value, bytes)}
        self.received.append(Received("", headers, request, time.monotonic()))
        if isinstance(answer, Refusal):
            if answer.trailers:
                context.set_trailing_metadata(answer.trailers)
            context.abort(answer.code, answer.details)
        return answer or ExportMetricsServiceResponse()


RECEIVERS = (HttpReceiver, GrpcReceiver)


def partial(rejected: int, message: str) -> ExportMetricsServiceResponse:
    """Return the response of a receiver that took a push without some of its points."""
    response = ExportMetricsServiceResponse()
    response.partial_success.rejected_data_points = rejected
    response.partial_success.error_message = message
    return response


@contextlib.contextmanager
def peer(talk: Callable[[socket.socket], None] = lambda _: None) -> Iterator[str]:
    """Give the endpoint of a peer that accepts, does something with each connection and holds it until the end."""
    listener = socket.create_server((HOST, 0))
    held: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def speak(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            talk(connection)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                held.append(connection)
                threads.append(threading.Thread(target=speak, args=(connection,), daemon=True))
                threads[-1].start()

    acceptor = threading.Thread(target=accept, daemon=True)
    acceptor.start()
    try:
        yield f"http://{HOST}:{listener.getsockname()[1]}"
    finally:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for connection in held:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        for thread in (acceptor, *threads):
            thread.join(5)


def trickle(connection: socket.socket) -> None:
    """PushResult byte by byte, and never come to an end."""
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 200 OK\r\nX-Long: ")
    while True:
        connection.sendall(b"a")
        time.sleep(0.05)


def trickle_body(connection: socket.socket) -> None:
    """PushResult with a body that comes byte by byte and never comes to an end."""
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4000\r\n\r\n")
    while True:
        connection.sendall(b"a")
        time.sleep(0.05)


def hear_request(connection: socket.socket) -> None:
    """Take a request in to its last byte: who hangs up on unread bytes takes back what was said."""
    request = b""
    while not _whole(request):
        if not (piece := connection.recv(1 << 20)):
            raise ConnectionError("it ends in the middle")
        request += piece


def _whole(request: bytes) -> bool:
    head, end, body = request.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: (\d+)", head)
    return length is not None and end != b"" and len(body) >= int(length[1])


def free_port() -> int:
    """Return a port that the system gives to nobody by itself, and that another process with tests does not try now."""
    for port in _PORTS:
        with contextlib.suppress(OSError), socket.create_server((HOST, port)):
            return port
    raise AssertionError("there is none")


def refusing() -> str:
    """Return the endpoint of nobody, which stays so: the port is taken, and nobody listens."""
    taken = socket.socket()
    taken.bind((HOST, 0))
    _TAKEN.append(taken)
    return f"http://{HOST}:{taken.getsockname()[1]}"


def metrics(message: Any) -> dict[str, Any]:
    """Return the metrics of a push by name; each must be there once."""
    found = [
        each for resource in message.resource_metrics for scope in resource.scope_metrics for each in scope.metrics
    ]
    named = {each.name: each for each in found}
    assert len(named) == len(found)
    return named


def attributes(holder: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in holder.attributes}


def points(message: Any) -> dict[Key, Any]:
    """Return the points of a push by metric name and attributes; each must be there once."""
    named: dict[Key, Any] = {}
    for name, metric in metrics(message).items():
        for point in getattr(metric, metric.WhichOneof("data")).data_points:
            key = (name, frozenset(attributes(point).items()))
            assert key not in named
            named[key] = point
    return named


def decoded(push: Push) -> Any:
    """Return a push that was built as the message that a receiver gets."""
    return ExportMetricsServiceRequest.FromString(encode_request(b"", push.metrics))


def identity(message: Any) -> dict[str, Any]:
    (resource,) = message.resource_metrics
    return attributes(resource.resource)


class Pusher:
    """A collector and what pushes it to an endpoint."""

    def __init__(self, endpoint: str, **values: Any) -> None:
        apart = {name: values.pop(name) for name in ("exemplars", "stale_after") if name in values}
        self.settings = Settings(otlp={"endpoint": endpoint, "timeout": 5.0, **values}, **apart)
        self.aggregator = Aggregator(self.settings)
        self.exporter: OtlpExporter = otlp_exporter(self.aggregator, self.settings, VERSION, AGE)

    def push(self, timeout: float | None = None) -> PushResult:
        return self.exporter.push(self.settings.otlp.timeout if timeout is None else timeout)

    def close(self) -> None:
        """Leave nothing behind that the log of another test would have a line of."""
        thread = self.exporter._thread
        if thread is not None and self.exporter._stopped.is_set():
            thread.join(PATIENCE)
        if self.exporter._transport is not None:
            self.exporter._transport.close()


def of(receiver: Receiver, **values: Any) -> Pusher:
    """Return what pushes to a receiver."""
    return Pusher(receiver.endpoint, protocol=receiver.protocol, **values)


def said(records: Sequence[Any]) -> list[tuple[str, str]]:
    """Return level and text of what was logged, by whomever."""
    return [(record.levelname, record.getMessage()) for record in records]
