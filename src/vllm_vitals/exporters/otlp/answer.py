"""What comes of a push, told in words that are fit for a log."""

import math
import re
import time
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from typing import Any

import requests
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse

from vllm_vitals.exporters.otlp.target import Target

NO_CONTENT = 204
HTTP_1_1 = 11
TRANSIENT_HTTP = (408, 429, 500, 502, 503, 504)
PERMANENT_GRPC = ("INVALID_ARGUMENT", "NOT_FOUND", "PERMISSION_DENIED", "UNAUTHENTICATED", "UNIMPLEMENTED")
MOST_SHOWN = 300
"""Characters of an answer that are logged."""
LEAST_SECRET = 4
"""Characters of a header's value from which it may be a secret; `1` is a tenant, and in every other word."""
WEB_PAGE = "it answered with a web page, so it may be no OTLP receiver at all"


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


def failed(error: BaseException) -> Answer:
    """Return what an error made of a push."""
    return Answer(error=f"{type(error).__name__}: {error}", kind=type(error).__name__)


def of_http(response: requests.Response, body: bytes) -> Answer:
    """Return the answer that an HTTP response spells."""
    status = response.status_code
    if 200 <= status < 300:  # noqa: PLR2004
        if not _is_whole(response):
            return Answer(error=f"HTTP {status}, but the answer was cut off", kind="cut off")
        kind = response.headers.get("Content-Type", "protobuf").lower()
        return _taken(body) if "protobuf" in kind else Answer(ok=True, warning=WEB_PAGE if "html" in kind else "")
    text = body[: 4 * MOST_SHOWN].decode(errors="replace").strip()
    said = f"HTTP {status} {response.reason or ''}".strip()
    return Answer(
        error=f"{said}: {text}" if text and text.isprintable() else said,
        kind=f"HTTP {status}",
        permanent=status not in TRANSIENT_HTTP,
        retry_after=asked_seconds(response.headers.get("Retry-After", "")),
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
    """Return the answer that a 2xx body spells."""
    response = ExportMetricsServiceResponse()
    try:
        response.ParseFromString(body)
    except Exception:  # noqa: BLE001 - a proxy's page, say: the status counts
        return Answer(ok=True)
    return partly(response)


def partly(response: Any) -> Answer:
    """Return the answer of a receiver that took a push, perhaps without some of its points."""
    partial = response.partial_success
    return Answer(ok=True, rejected=max(partial.rejected_data_points, 0), warning=partial.error_message)


def asked_seconds(header: str) -> float:
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


def of_grpc(error: Any) -> Answer:
    """Return the answer that a gRPC error spells."""
    code = error.code().name
    return Answer(
        error=f"gRPC {code}: {error.details()}",
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


def redacted(answer: Answer, target: Target) -> Answer:
    """Return an answer fit for a log: one line that ends, without any secret, which some receivers repeat."""
    error, warning = answer.error, answer.warning
    for secret in target.secrets():
        if len(secret) >= LEAST_SECRET:
            error, warning = error.replace(secret, "***"), warning.replace(secret, "***")
    return replace(answer, error=_printable(error)[:MOST_SHOWN], warning=_printable(warning)[:MOST_SHOWN])


def _printable(text: str) -> str:
    """Return a peer's words with whatever is not printable escaped."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
