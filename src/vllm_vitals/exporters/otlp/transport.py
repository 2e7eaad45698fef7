"""The official OTLP exporters, with their answers kept: they themselves tell success from failure only.

Retrying is left to us, who wait for the next interval: so a status that an exporter would retry by itself, for up to
a minute, is shown to it as final.
"""

import gzip
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from types import FunctionType
from typing import Any, Protocol, TypeVar, cast

import grpc
import requests
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import MetricsServiceStub
from opentelemetry.sdk.metrics.export import MetricsData

from vllm_vitals.exporters.otlp.answer import Answer, failed, of_grpc, of_http, partly, redacted
from vllm_vitals.exporters.otlp.peer import addresses, locate, shake_hands
from vllm_vitals.exporters.otlp.quiet import quiet
from vllm_vitals.exporters.otlp.target import Target

LEVEL = 5
"""Of gzip."""
FINAL = 400
"""The status that an exporter is shown for a failure."""
OWN_HEADERS = (
    "accept", "accept-encoding", "connection", "content-encoding", "content-length", "content-type",
    "host", "user-agent",
)  # fmt: skip
"""Headers that a request has without being told to."""
MOST_ANSWER = 65536
"""Bytes of an answer that are read."""

Send = TypeVar("Send", bound=Callable[..., Answer])


class Transport(Protocol):
    """Sends pushes one after the other."""

    def send(self, data: MetricsData) -> Answer:
        """Send and return what came of it; takes at most about the target's timeout."""

    def close(self) -> None:
        """Let go of connections."""


def connect(target: Target, timeout: float) -> Transport:
    """Return a transport to a target that gives up after `timeout` seconds."""
    return GrpcTransport(target, timeout) if target.protocol == "grpc" else HttpTransport(target, timeout)


def _told(send: Send) -> Send:
    """Let a transport return what went wrong, all of it fit for a log: gRPC's errors may name the headers."""

    @wraps(send)
    def call(self: Any, data: MetricsData) -> Answer:
        try:
            answer = send(self, data)
        except Exception as error:  # noqa: BLE001 - told as the push's failure
            answer = failed(error)
        return redacted(answer, self._target)

    return cast("Send", call)


class _Session(requests.Session):
    """Sends what the target says and nothing else, and keeps what came of the latest request."""

    def __init__(self, target: Target, timeout: float) -> None:
        super().__init__()
        self.answer = Answer()
        self.auth = lambda request: request  # else a .netrc would replace our Authorization
        self._ca = target.ca
        self._gzip = target.compression == "gzip"
        self._timeout = timeout
        self._allowed = {*map(str.lower, target.headers), *OWN_HEADERS}

    def request(self, *args: Any, **kwargs: Any) -> requests.Response:
        try:
            return super().request(*args, **kwargs)
        except (requests.RequestException, OSError, ValueError) as error:
            # Of these the library's own ValueErrors are about an address or a header that nobody could use.
            self.answer = replace(failed(_innermost(error)), permanent=isinstance(error, ValueError))
            return _final()

    def send(self, request: requests.PreparedRequest, **kwargs: Any) -> requests.Response:
        deadline = time.monotonic() + self._timeout
        kwargs |= {"stream": True, "timeout": self._timeout, "allow_redirects": False}
        if self._ca:
            kwargs["verify"] = self._ca  # else REQUESTS_CA_BUNDLE would win
        for name in [name for name in request.headers if name.lower() not in self._allowed]:
            del request.headers[name]  # the exporter adds what the variables say even where ours replace them
        if self._gzip and isinstance(request.body, bytes):
            request.body = gzip.compress(request.body, LEVEL)
            request.headers["Content-Encoding"] = "gzip"
            request.headers["Content-Length"] = str(len(request.body))
        response = super().send(request, **kwargs)
        self.answer = of_http(response, _bounded(response, deadline))
        return response if self.answer.ok else _final()


def _bounded(response: requests.Response, deadline: float) -> bytes:
    """Return the body of a response, read in bounded time and size."""
    body = b""
    try:
        for chunk in response.iter_content(4096):
            body += chunk
            if len(body) > MOST_ANSWER or time.monotonic() > deadline:
                raise requests.Timeout("the answer does not end")
    finally:
        response.close()
    return body


def _final() -> requests.Response:
    response = requests.Response()
    response.status_code = FINAL
    response._content = b""  # noqa: SLF001 - there is no public way to make a response
    return response


def _innermost(error: BaseException) -> BaseException:
    """Return the innermost reason of a failed request."""
    while True:
        inner = error.__cause__ or error.__context__ or getattr(error, "reason", None)
        if not isinstance(inner, BaseException) or inner is error:
            break
        error = inner
    return error


class HttpTransport:
    """OTLP over HTTP with protobuf."""

    def __init__(self, target: Target, timeout: float) -> None:
        self._target = target
        self._session = _Session(target, timeout)
        with quiet():
            self._exporter = HttpExporter(
                endpoint=target.endpoint,
                certificate_file=target.ca,
                client_certificate_file=target.cert,
                client_key_file=target.key,
                headers=dict(target.headers),
                timeout=timeout,  # older exporters say int and take either
                compression=Compression.NoCompression,  # its level takes twice the time of ours, for a few per cent
                session=self._session,
            )

    @_told
    def send(self, data: MetricsData) -> Answer:  # noqa: D102
        self._session.answer = Answer(error="the push could not be encoded")
        with quiet():
            self._exporter.export(data)
        return self._session.answer

    def close(self) -> None:  # noqa: D102
        self._session.close()


class _Failed(grpc.RpcError):
    """A failure that an exporter does not try again."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.INVALID_ARGUMENT

    def details(self) -> str:
        return ""

    def trailing_metadata(self) -> tuple[()]:
        return ()


class _Stub:
    """The metrics service's client: sends the target's headers alone, and keeps what came of the latest call."""

    def __init__(self, channel: grpc.Channel, headers: Mapping[str, str]) -> None:
        self._export = MetricsServiceStub(channel).Export  # type: ignore[no-untyped-call]
        self._headers = tuple((name.lower(), value) for name, value in headers.items())
        self.answer = Answer()

    def Export(self, request: Any, **kwargs: Any) -> Any:  # noqa: N802 - the service's name for it
        # The exporter takes those of the variables where it is given none, also when ours, or a mistake, replace them.
        kwargs["metadata"] = self._headers
        try:
            response = self._export(request, **kwargs)
        except grpc.RpcError as error:
            self.answer = of_grpc(error)
            raise _Failed from error
        self.answer = partly(response)
        return response


def _apart(init: Any) -> Any:
    """Return a constructor that finds the environment empty.

    The exporter's fails on a timeout there that is blank or no number, even when it is given another.
    """
    made = FunctionType(
        init.__code__, {**init.__globals__, "environ": {}}, init.__name__, init.__defaults__, init.__closure__
    )
    made.__kwdefaults__ = init.__kwdefaults__
    return made


INIT = _apart(GrpcExporter.__init__)


class GrpcTransport:
    """OTLP over gRPC."""

    def __init__(self, target: Target, timeout: float) -> None:
        self._target = target
        self._timeout = timeout
        self._greeted = False
        exporter: Any = GrpcExporter.__new__(GrpcExporter)
        with quiet():
            INIT(
                exporter,
                endpoint=target.endpoint,
                insecure=target.insecure,
                credentials=None if target.insecure else _credentials(target),
                timeout=timeout,
                compression={"gzip": grpc.Compression.Gzip, "none": grpc.Compression.NoCompression}[target.compression],
            )
        self._exporter = exporter
        # The exporter keeps no answers.
        self._stub = exporter._client = _Stub(exporter._channel, target.headers)  # noqa: SLF001

    @_told
    def send(self, data: MetricsData) -> Answer:  # noqa: D102
        if not self._greeted and (refusal := _greet(self._target, self._timeout)):
            return refusal
        self._greeted = True
        self._stub.answer = Answer(error="the push could not be encoded")
        with quiet():
            self._exporter.export(data)
        answer = self._stub.answer
        if "handshake" in answer.error.lower():  # it had lost its connection, and met another certificate
            return _greet(self._target, self._timeout) or answer
        return answer

    def close(self) -> None:  # noqa: D102
        with quiet():
            self._exporter.shutdown()


def _greet(target: Target, timeout: float) -> Answer | None:
    """Return why a peer cannot be spoken to with TLS, `None` when it can or gRPC has to find out by itself.

    Its own handshake tells little of what is wrong, and its core writes a line to stderr each time that it fails.
    """
    try:
        found = locate(target) if target.tls else None
        if found is None or found.proxy:
            return None
        shake_hands(target, found, addresses(found)[0], timeout)
    except ssl.SSLError as error:
        return Answer(error=f"TLS: {error}", kind=f"TLS {getattr(error, 'reason', '')}")
    except (OSError, ValueError):
        return None  # nobody there, say: gRPC tells that well, and may know of another address
    return None


def _credentials(target: Target) -> grpc.ChannelCredentials:
    def content(path: str | None) -> bytes | None:
        if path is None:
            return None
        with open(path, "rb") as file:  # noqa: PTH123
            return file.read()

    return grpc.ssl_channel_credentials(content(target.ca), content(target.key), content(target.cert))
