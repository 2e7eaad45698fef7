"""An OTLP receiver in a process of its own that takes whatever comes at once, and a relay that counts its bytes."""

import base64
import gzip
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from typing_extensions import Self

HOST = "127.0.0.1"
AGGREGATIONS = {"explicit": "explicit_bucket_histogram", "exponential": "base2_exponential_bucket_histogram"}


class Taken(NamedTuple):
    """What came in so far: pushes, and the bytes that went through the relay."""

    pushes: int
    relayed: int


class Receiver:
    """The process, as the one that pushes sees it; it ends with the block."""

    def __init__(self, protocol: str) -> None:
        self._protocol = protocol
        command = [sys.executable, "-m", __name__, protocol]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._port, self._relay = json.loads(self._answer())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def variables(
        self, *, interval: float, histograms: str = "explicit", compression: str = "gzip", relayed: bool = False
    ) -> Mapping[str, str]:
        """Return the standard variables that let an exporter push here every so many seconds."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{HOST}:{self._relay if relayed else self._port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": self._protocol,
            "OTEL_EXPORTER_OTLP_COMPRESSION": compression,
            "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION": AGGREGATIONS[histograms],
            "OTEL_METRIC_EXPORT_INTERVAL": str(int(interval * 1e3)),
        }

    def taken(self) -> Taken:
        """Return what came in so far."""
        return Taken(*json.loads(self._ask("taken")))

    def last(self) -> bytes:
        """Return the latest push, not compressed."""
        return base64.b64decode(self._ask("last"))

    def _ask(self, what: str) -> str:
        assert self._process.stdin is not None
        print(what, file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("the receiver is gone")
        return answer


class Box:
    """What the process has taken."""

    def __init__(self) -> None:
        self.pushes = 0
        self.relayed = 0
        self.server: Any = None
        """What takes the pushes: a gRPC server ends when nobody holds it."""
        self._last: tuple[bytes, bool] = (b"", False)

    def keep(self, body: bytes, *, zipped: bool = False) -> None:
        """Take a push."""
        self._last = body, zipped
        self.pushes += 1

    def last(self) -> bytes:
        """Return the latest push."""
        body, zipped = self._last
        return gzip.decompress(body) if zipped else body


def serve_http(box: Box) -> int:
    """Take pushes over HTTP from now on, and return the port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            box.keep(body, zipped=self.headers.get("Content-Encoding") == "gzip")
            # An empty body is a response without complaints, and goes out with the headers in one piece.
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = box.server = ThreadingHTTPServer((HOST, 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return int(server.server_port)


def serve_grpc(box: Box) -> int:
    """Take pushes over gRPC from now on, and return the port."""
    import grpc

    def take(body: bytes, _: Any) -> bytes:
        box.keep(body)
        return b""

    class Handler(grpc.GenericRpcHandler):  # type: ignore[misc,unused-ignore]
        def service(self, _: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(take)

    server = box.server = grpc.server(ThreadPoolExecutor(2), options=[("grpc.max_receive_message_length", -1)])
    server.add_generic_rpc_handlers([Handler()])
    port = server.add_insecure_port(f"{HOST}:0")
    server.start()
    return int(port)


def relay(box: Box, port: int) -> int:
    """Pass connections on to `port` from now on, counting what clients send, and return the relay's port."""
    listener = socket.create_server((HOST, 0))

    def accept() -> None:
        while True:
            client, _ = listener.accept()
            server = socket.create_connection((HOST, port))
            threading.Thread(target=_pump, args=(client, server, box), daemon=True).start()
            threading.Thread(target=_pump, args=(server, client, None), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return int(listener.getsockname()[1])


def _pump(source: socket.socket, sink: socket.socket, box: Box | None) -> None:
    """Pass on what comes until one side closes."""
    with suppress(OSError):
        sink.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while data := source.recv(65536):
            if box is not None:
                box.relayed += len(data)
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)


def main(protocol: str) -> None:
    """Print the ports, then answer the questions on stdin."""
    box = Box()
    port = serve_grpc(box) if protocol == "grpc" else serve_http(box)
    print(json.dumps([port, relay(box, port)]), flush=True)
    for line in sys.stdin:
        if line.strip() == "taken":
            print(json.dumps([box.pushes, box.relayed]), flush=True)
        else:
            print(base64.b64encode(box.last()).decode(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
