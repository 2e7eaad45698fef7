"""The official OTLP exporters, with their answers kept: they themselves tell success from failure only.

Retrying is left to us, who wait for the next interval: so a status that an exporter would retry by itself, for up to
a minute, is shown to it as final.
"""

import gzip
import logging
import math
import re
import ssl
import threading
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Protocol

import grpc
import requests
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY, attach, detach, set_value
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import MetricsServiceStub
from opentelemetry.sdk.metrics.export import MetricsData

from vllm_vitals.exporters.otlp.peer import addresses, locate, shake_hands
from vllm_vitals.exporters.otlp.target import Target

NO_CONTENT = 204
HTTP_1_1 = 11
LEVEL = 5
"""Of gzip."""
FINAL = 400
"""The status that an exporter is shown for a failure."""
TRANSIENT_HTTP = (408, 429, 500, 502, 503, 504)
PERMANENT_GRPC = ("INVALID_ARGUMENT", "NOT_FOUND", "PERMISSION_DENIED", "UNAUTHENTICATED", "UNIMPLEMENTED")
OWN_HEADERS = (
    "accept", "accept-encoding", "connection", "content-encoding", "content-length", "content-type",
    "host", "user-agent",
)  # fmt: skip
"""Headers that a request has without being told to."""
MOST_ANSWER = 65536
"""Bytes of an answer that are read."""


@dataclass
class Answer:
    """What came of a push."""

    ok: bool = False
    error: str = "no answer"
    kind: str = ""
    """What sort of failure it is: two errors of one kind may differ in their words."""
    permanent: bool = False
    """Whether the same push will fail again until somebody changes something."""
    retry_after: float = 0.0
    """Seconds that the peer asked to be left alone."""
    rejected: int = 0
    """Points that the peer took the push without."""
    warning: str = ""


class Transport(Protocol):
    """Sends pushes one after the other."""

    def send(self, data: MetricsData) -> Answer:
        """Send and return what came of it; takes at most about the target's timeout."""

    def close(self) -> None:
        """Let go of connections."""


def connect(target: Target, timeout: float) -> Transport:
    """Return a transport to a target that gives up after `timeout` seconds."""
    return GrpcTransport(target, timeout) if target.protocol == "grpc" else HttpTransport(target, timeout)


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
        try:
            response = super().send(request, **kwargs)
            body = _bounded(response, deadline)
        except (requests.RequestException, OSError) as error:
            reason = _innermost(error)
            self.answer = Answer(error=f"{type(reason).__name__}: {reason}"[:300], kind=type(reason).__name__)
            return _final()
        self.answer = _http_answer(response, body)
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


def _http_answer(response: requests.Response, body: bytes) -> Answer:
    status = response.status_code
    if 200 <= status < 300:  # noqa: PLR2004
        if not _is_whole(response):
            return Answer(error=f"HTTP {status}, but the answer was cut off", kind="cut off")
        return _taken(body) if "protobuf" in response.headers.get("Content-Type", "protobuf") else Answer(ok=True)
    text = body[:200].decode(errors="replace").strip()
    said = f"HTTP {status} {response.reason or ''}".strip()
    return Answer(
        error=f"{said}: {text}" if text and text.isprintable() else said,
        kind=f"HTTP {status}",
        permanent=status not in TRANSIENT_HTTP,
        retry_after=_seconds(response.headers.get("Retry-After", "")),
    )


def _is_whole(response: requests.Response) -> bool:
    """Tell whether the head of an answer came to its end: the client takes the end of the connection for it.

    Only a server that says that it closes the connection, or speaks HTTP/1.0, may leave out how long its answer is.
    """
    headers = response.headers
    if "Content-Length" in headers or "Transfer-Encoding" in headers or response.status_code == NO_CONTENT:
        return True
    return bool(headers) and (response.raw.version < HTTP_1_1 or headers.get("Connection", "").lower() == "close")


def _taken(body: bytes) -> Answer:
    """Return the answer that a 2xx body or gRPC response spells."""
    response = ExportMetricsServiceResponse()
    try:
        response.ParseFromString(body)
    except Exception:  # noqa: BLE001 - a proxy's page, say: the status counts
        return Answer(ok=True)
    return _partly(response)


def _partly(response: Any) -> Answer:
    partial = response.partial_success
    return Answer(ok=True, rejected=partial.rejected_data_points, warning=partial.error_message)


def _seconds(header: str) -> float:
    """Return the seconds of a Retry-After header, which may also be a date."""
    try:
        seconds = float(header)
        return 0.0 if math.isnan(seconds) else max(seconds, 0.0)
    except ValueError:
        pass
    try:
        return max(parsedate_to_datetime(header).timestamp() - time.time(), 0.0)
    except (TypeError, ValueError):
        return 0.0


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

    def send(self, data: MetricsData) -> Answer:  # noqa: D102
        self._session.answer = Answer(error="the push could not be encoded")
        with _quiet():
            self._exporter.export(data)
        return _redacted(self._session.answer, self._target)

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
    """The metrics service's client, which keeps what came of the latest call."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._export = MetricsServiceStub(channel).Export  # type: ignore[no-untyped-call]
        self.answer = Answer()

    def Export(self, request: Any, **kwargs: Any) -> Any:  # noqa: N802 - the service's name for it
        try:
            response = self._export(request, **kwargs)
        except grpc.RpcError as error:
            self.answer = _grpc_answer(error)
            raise _Failed from error
        self.answer = _partly(response)
        return response


def _grpc_answer(error: Any) -> Answer:
    code = error.code().name
    return Answer(
        error=f"gRPC {code}: {error.details()}"[:300],
        # Of one cause only numbers differ: ports, hashes.
        kind=re.sub(r"\w*\d\w*", "", f"gRPC {code}: {error.details()}")[:200],
        permanent=code in PERMANENT_GRPC,
        retry_after=_retry_delay(error.trailing_metadata() or ()),
    )


def _retry_delay(metadata: Any) -> float:
    """Return the seconds of a RetryInfo, which servers put into the details of a status."""
    retry = RetryInfo()
    for name, value in metadata:
        try:
            if name == "grpc-status-details-bin":
                for detail in Status.FromString(value).details:
                    detail.Unpack(retry)
            elif name == "google.rpc.retryinfo-bin":
                retry.ParseFromString(value)
        except Exception:  # noqa: BLE001, S112 - garbage must not hide the error itself
            continue
    return float(retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9)


def _redacted(answer: Answer, target: Target) -> Answer:
    """Return an answer fit for a log: on one line, without the headers' values, which some receivers repeat."""
    for secret in filter(None, target.headers.values()):
        answer.error = answer.error.replace(secret, "***")
        answer.warning = answer.warning.replace(secret, "***")
    answer.error, answer.warning = printable(answer.error), printable(answer.warning)
    return answer


def printable(text: str) -> str:
    """Return a peer's words with whatever is not printable escaped."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


class GrpcTransport:
    """OTLP over gRPC."""

    def __init__(self, target: Target, timeout: float) -> None:
        self._target = target
        self._timeout = timeout
        self._greeted = False
        self._exporter = GrpcExporter(
            endpoint=target.endpoint,
            insecure=target.insecure,
            credentials=None if target.insecure else _credentials(target),
            headers=tuple((name.lower(), value) for name, value in target.headers.items()),
            timeout=timeout,
            compression={"gzip": grpc.Compression.Gzip, "none": grpc.Compression.NoCompression}[target.compression],
        )
        exporter: Any = self._exporter
        self._stub = exporter._client = _Stub(exporter._channel)  # noqa: SLF001 - the exporter keeps no answers

    def send(self, data: MetricsData) -> Answer:  # noqa: D102
        if not self._greeted and (refusal := _greet(self._target, self._timeout)):
            return refusal
        self._greeted = True
        self._stub.answer = Answer(error="the push could not be encoded")
        with _quiet():
            self._exporter.export(data)
        answer = _redacted(self._stub.answer, self._target)
        if "handshake" in answer.error.lower():  # it had lost its connection, and met another certificate
            return _greet(self._target, self._timeout) or answer
        return answer

    def close(self) -> None:  # noqa: D102
        with _quiet():
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
        return Answer(error=f"TLS: {error}"[:300], kind=f"TLS {getattr(error, 'reason', '')}")
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


class _quiet:  # noqa: N801 - reads as a statement
    """Keeps the exporters' own log lines of this thread out: we say the same once, not at every interval.

    Nor do their clients tell of themselves where somebody has instrumented them: a push is no work of vLLM's.
    """

    NAMES = (
        "opentelemetry.exporter.otlp.proto.http.metric_exporter",
        "opentelemetry.exporter.otlp.proto.grpc.exporter",
        "opentelemetry.exporter.otlp.common.http",
    )

    def __enter__(self) -> None:
        self._thread = threading.get_ident()
        for name in self.NAMES:
            logging.getLogger(name).addFilter(self._passes)
        self._context = attach(set_value(_SUPPRESS_INSTRUMENTATION_KEY, value=True))

    def __exit__(self, *_: object) -> None:
        detach(self._context)
        for name in self.NAMES:
            logging.getLogger(name).removeFilter(self._passes)

    def _passes(self, record: logging.LogRecord) -> bool:
        return record.thread != self._thread
