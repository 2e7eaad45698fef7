"""One push, and what came of it: the official encoding, sent on connections of which all steps share one deadline.

Retrying is left to the exporter, who waits for the next interval.
"""

import gzip
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast
from urllib.parse import urlsplit

import grpc
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import DESCRIPTOR
from opentelemetry.sdk.metrics.export import MetricsData

from vllm_vitals._util.deadline_socket import Deadline
from vllm_vitals.exporters.otlp.answer import Answer, failed, of_grpc, of_http, redacted, taken
from vllm_vitals.exporters.otlp.line import Line, Tls, dial
from vllm_vitals.exporters.otlp.peer import addresses, context, locate, shake_hands
from vllm_vitals.exporters.otlp.quiet import quiet
from vllm_vitals.exporters.otlp.reply import read_reply
from vllm_vitals.exporters.otlp.request import USER_AGENT, request
from vllm_vitals.exporters.otlp.target import Target

LEVEL = 5
"""Of gzip."""
METHOD = f"/{DESCRIPTOR.services_by_name['MetricsService'].full_name}/Export"
MOST_MESSAGE = 16 * 2**20
"""Bytes of the message with which a gRPC receiver says that it took a push; of a longer one that cannot be known."""
OPTIONS = (("grpc.primary_user_agent", USER_AGENT), ("grpc.max_receive_message_length", MOST_MESSAGE))

Send = TypeVar("Send", bound=Callable[..., Answer])


class Transport(Protocol):
    """Sends pushes one after the other."""

    def send(self, data: MetricsData) -> Answer:
        """Send and return what came of it; takes at most about the target's timeout."""

    def close(self) -> None:
        """Let go of connections."""


def connect(target: Target, timeout: float) -> Transport:
    """Return a transport to a target that gives up after `timeout` seconds.

    Raises:
        OSError: when a file of a certificate cannot be used.
        EndpointError: when nobody could send anything there.
    """
    return GrpcTransport(target, timeout) if target.protocol == "grpc" else HttpTransport(target, timeout)


def _told(send: Send) -> Send:
    """Let a transport return what went wrong, all of it fit for a log: gRPC's errors may name the headers."""

    @wraps(send)
    def call(self: Any, data: MetricsData) -> Answer:
        try:
            with quiet():
                answer = send(self, data)
        except TimeoutError:
            answer = Answer(error=f"no answer within {self._timeout:g} s", kind="timeout")
        except Exception as error:  # noqa: BLE001 - told as the push's failure
            answer = failed(error)
        return redacted(answer, self._target.redactor)

    return cast("Send", call)


class HttpTransport:
    """OTLP over HTTP with protobuf."""

    def __init__(self, target: Target, timeout: float) -> None:
        self._target = target
        self._timeout = timeout
        self._request = request(target)
        self._context = context(target) if target.tls else None
        if self._context is not None:
            self._context.set_alpn_protocols(["http/1.1"])
        self._line: Line | None = None
        """The connection, while it can be used again."""

    @_told
    def send(self, data: MetricsData) -> Answer:  # noqa: D102
        body = encode_metrics(data).SerializeToString()
        packed = self._target.compression == "gzip"
        if packed:
            body = gzip.compress(body, LEVEL)
        deadline = Deadline(self._timeout)
        line = self._usual(deadline) or self._new(deadline)
        try:
            line.send(self._request.push(body, packed=packed))
            reply = read_reply(line.receive)
        except BaseException:
            line.close()
            raise
        if reply.lasting:
            self._line = line
        else:
            line.close()
        return of_http(reply)

    def close(self) -> None:  # noqa: D102
        line, self._line = self._line, None
        if line is not None:
            line.close()

    def _usual(self, deadline: Deadline) -> Line | None:
        """Return the connection of before, unless its peer has said something since, if only that it ends."""
        line, self._line = self._line, None
        if line is None:
            return None
        if not line.idle():
            line.close()
            return None
        line.begin(deadline)
        return line

    def _new(self, deadline: Deadline) -> Line:
        receiver, proxy = self._request.receiver, self._request.proxy
        first = proxy or receiver
        line: Line = dial(first.host, first.port, deadline)
        try:
            if proxy is not None and proxy.tls:
                line = Tls(line, context(self._target, proxy=True), proxy.host.rstrip("."))
            if proxy is not None and receiver.tls:
                line.send(self._request.tunnel)
                reply = read_reply(line.receive, tunnel=True)
                if not 200 <= reply.status < 300:  # noqa: PLR2004
                    raise ConnectionError(f"the proxy {proxy.shown} answered HTTP {reply.status} {reply.reason}")  # noqa: TRY301
            if self._context is not None:
                line = Tls(line, self._context, receiver.host.rstrip("."))
        except BaseException:
            line.close()
            raise
        return line


class GrpcTransport:
    """OTLP over gRPC."""

    def __init__(self, target: Target, timeout: float) -> None:
        self._target = target
        self._timeout = timeout
        self._greeted = False
        self._metadata = target.metadata
        compression = grpc.Compression.Gzip if target.compression == "gzip" else grpc.Compression.NoCompression
        address = _address(target.endpoint)
        with quiet():
            if target.insecure:
                self._channel = grpc.insecure_channel(address, options=OPTIONS, compression=compression)
            else:
                self._channel = grpc.secure_channel(
                    address, _credentials(target), options=OPTIONS, compression=compression
                )
            # Bytes in both directions: what a receiver says beside OK must not turn it into a failure.
            self._export: Callable[..., bytes] = self._channel.unary_unary(METHOD)

    @_told
    def send(self, data: MetricsData) -> Answer:  # noqa: D102
        message = encode_metrics(data).SerializeToString()
        deadline = Deadline(self._timeout)
        if not self._greeted and (refusal := _greet(self._target, deadline)):
            return refusal
        self._greeted = True
        try:
            return taken(self._export(message, timeout=deadline.left(), metadata=self._metadata))
        except grpc.RpcError as error:
            answer = of_grpc(error)
        if "handshake" in answer.error.lower():  # it had lost its connection, and met another certificate
            with suppress(TimeoutError):
                return _greet(self._target, deadline) or answer
        return answer

    def close(self) -> None:  # noqa: D102
        with quiet():
            self._channel.close()


def _address(endpoint: str) -> str:
    """Return what gRPC takes for an address; a user and a password are nothing to it."""
    if endpoint.startswith("unix"):
        return endpoint
    address = urlsplit(endpoint).netloc if "://" in endpoint else endpoint
    return address.rpartition("@")[2] or endpoint


def _greet(target: Target, deadline: Deadline) -> Answer | None:
    """Return why a peer cannot be spoken to with TLS, `None` when it can or gRPC has to find out by itself.

    Its own handshake tells little of what is wrong, and its core writes a line to stderr each time that it fails.
    """
    try:
        found = locate(target) if target.tls else None
        if found is None or found.proxy:
            return None
        shake_hands(target, found, addresses(found)[0], deadline.left())
    except ssl.SSLError as error:
        return Answer(error=f"TLS: {error}", kind=f"TLS {getattr(error, 'reason', '')}")
    except (OSError, ValueError):
        return None  # nobody there, say: gRPC tells that well, and may know of another address
    return None


def _credentials(target: Target) -> grpc.ChannelCredentials:
    ca, key, cert = (path and Path(path).read_bytes() for path in (target.ca, target.key, target.cert))
    return grpc.ssl_channel_credentials(ca or None, key or None, cert or None)
