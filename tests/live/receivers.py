"""Receivers that come and go behind one address, with and without TLS, and what they can do wrong."""

import contextlib
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import grpc
import trustme
from google.protobuf.any_pb2 import Any as Packed
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import add_MetricsServiceServicer_to_server

from tests.live.server import free_port
from tests.unit.otlp import HOST, GrpcReceiver, HttpReceiver, Receiver, Refusal, Reply, peer

Serving = AbstractContextManager[Any]
"""Something that has a `port` while it is entered."""


class Authority:
    """A CA that both ends trust, and files of what a client shows."""

    def __init__(self, home: Path) -> None:
        self._ca = trustme.CA()
        self.file, self.chain, self.key = (home / name for name in ("ca.pem", "client.pem", "client.key"))
        self._ca.cert_pem.write_to_path(self.file)
        client = self._ca.issue_cert("vllm.example")
        client.cert_chain_pems[0].write_to_path(self.chain)
        client.private_key_pem.write_to_path(self.key)

    def tls(self, **options: Any) -> ssl.SSLContext:
        """Return how a receiver speaks TLS that lets nobody in without a certificate of this CA."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._ca.issue_cert(HOST, **options).configure_cert(context)
        self._ca.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
        context.set_alpn_protocols(["h2", "http/1.1"])
        return context


class Front:
    """A port that leads to whatever receiver is behind it just now, or is closed; it ends TLS as a proxy would."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.port = free_port()
        self.carried = 0
        """Bytes that came from clients, TLS taken off."""
        self._usual = tls
        self._way: tuple[int, ssl.SSLContext | None] = (0, tls)
        self._listener: socket.socket | None = None
        self._threads: list[threading.Thread] = []

    def lead(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        """Lead new connections to another port, with the usual TLS or another; those that there are stay."""
        self._way = (port, tls or self._usual)
        if self._listener is None:
            self._listener = socket.create_server((HOST, self.port))
            self._spawn(self._accept, self._listener)

    def refuse(self) -> None:
        """Accept no connections any more."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()

    def close(self) -> None:
        """Refuse, and wait until no connection is left: both of its ends have to be gone."""
        self.refuse()
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()

    def _spawn(self, work: Callable[..., None], *args: Any) -> None:
        self._threads.append(threading.Thread(target=work, args=args, daemon=True))
        self._threads[-1].start()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._spawn(self._join, listener.accept()[0], *self._way)

    def _join(self, client: socket.socket, port: int, tls: ssl.SSLContext | None) -> None:
        with contextlib.suppress(OSError), client, socket.create_connection((HOST, port)) as receiver:
            if tls is None:
                self._pass_on(client, receiver)
            else:
                with tls.wrap_socket(client, server_side=True) as secured:
                    self._pass_on(secured, receiver)

    def _pass_on(self, client: socket.socket, receiver: socket.socket) -> None:
        """Pass on what either side says until one of them ends; one thread, for OpenSSL takes no two."""
        while True:
            buffered = isinstance(client, ssl.SSLSocket) and client.pending()
            for source in [client] if buffered else select.select([client, receiver], [], [])[0]:
                data = source.recv(65536)
                if not data:
                    return
                if source is client:
                    self.carried += len(data)
                (receiver if source is client else client).sendall(data)


class _ShortLived(GrpcReceiver):
    """Gives up each connection soon after it was made, in order: what it has taken in is answered all the same."""

    @contextlib.contextmanager
    def serve(self, *_: Any, **__: Any) -> Iterator["_ShortLived"]:
        workers = ThreadPoolExecutor(4)
        server = grpc.server(workers, options=(("grpc.max_connection_age_ms", 100),))
        add_MetricsServiceServicer_to_server(self, server)  # type: ignore[no-untyped-call]
        self.port = server.add_insecure_port(f"{HOST}:0")
        server.start()
        try:
            yield self
        finally:
            server.stop(0).wait(5)
            workers.shutdown()


def good(protocol: str) -> HttpReceiver | GrpcReceiver:
    """Return a receiver that takes everything, each push over a connection of its own.

    So another one can take its place without cutting off an answer: then both ends know alike what was taken.
    """
    return _ShortLived() if protocol == "grpc" else HttpReceiver(Reply(headers={"Connection": "close"}))


class _Silent:
    """Takes pushes to the last byte and answers none."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = threading.Event()
        self.over = threading.Event()

    def answer(self) -> Any:
        self.reached.set()
        self.over.wait()
        # Never a success, even to a client that still waits.
        return Reply(503) if isinstance(self, HttpReceiver) else Refusal(grpc.StatusCode.ABORTED)


class SilentHttp(_Silent, HttpReceiver):
    """An OTLP receiver over HTTP that hangs."""


class SilentGrpc(_Silent, GrpcReceiver):
    """An OTLP receiver over gRPC that hangs."""


@contextlib.contextmanager
def silent(kind: type[SilentHttp] | type[SilentGrpc]) -> Iterator[Any]:
    """Serve a receiver that hangs."""
    receiver = kind()
    with receiver.serve():
        try:
            yield receiver
        finally:
            receiver.over.set()


def answering(kind: type[Receiver], answer: Any) -> Callable[[], Serving]:
    """Return what serves a receiver that has one answer to every push."""
    return lambda: kind(answer).serve()  # type: ignore[attr-defined]


def talking(talk: Callable[[socket.socket], None]) -> Callable[[], Serving]:
    """Return what serves a peer that is no OTLP receiver."""

    @contextlib.contextmanager
    def serve() -> Iterator[Receiver]:
        with peer(talk) as endpoint:
            receiver = Receiver()
            receiver.port = int(endpoint.rpartition(":")[2])
            yield receiver

    return serve


def hear(connection: socket.socket) -> None:
    """Take in what comes until nothing does: who hangs up on unread bytes takes back what was said."""
    connection.settimeout(0.5)
    with contextlib.suppress(TimeoutError):
        while connection.recv(65536):
            pass
    connection.settimeout(None)


def garbage(connection: socket.socket) -> None:
    """Answer with what is neither HTTP nor HTTP/2."""
    hear(connection)
    connection.sendall(b"\x00\xff\x01nonsense\r\n\r\n")
    connection.shutdown(socket.SHUT_RDWR)


def hang_up(connection: socket.socket) -> None:
    """End the connection without an answer."""
    hear(connection)
    connection.shutdown(socket.SHUT_RDWR)


def trickle(connection: socket.socket) -> None:
    """Answer byte by byte for six seconds, and never with a whole status, which alone would say that a push was taken."""
    hear(connection)
    connection.sendall(b"HTTP/1.1 200 ")
    for _ in range(60):
        connection.sendall(b"a")
        time.sleep(0.1)
    connection.shutdown(socket.SHUT_RDWR)


def retry_info(code: grpc.StatusCode, seconds: int) -> tuple[tuple[str, bytes], ...]:
    """Return the trailers by which a gRPC receiver asks to be left alone for some seconds."""
    packed = Packed()
    info = RetryInfo()
    info.retry_delay.FromSeconds(seconds)
    packed.Pack(info)
    status = Status(code=code.value[0], message="busy", details=[packed])
    return (("grpc-status-details-bin", status.SerializeToString()),)
