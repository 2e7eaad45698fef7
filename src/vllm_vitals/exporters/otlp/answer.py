"""What comes of a push, told in words that are fit for a log."""

import math
import re
import time
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from typing import Any

from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse

from vllm_vitals._util.bounds import clean
from vllm_vitals._util.redact import MOST_SEARCHED, Redactor
from vllm_vitals.exporters.otlp.reply import Reply
from vllm_vitals.exporters.otlp.target import EndpointError

TRANSIENT_HTTP = (408, 429, 500, 502, 503, 504)
PERMANENT_GRPC = ("INVALID_ARGUMENT", "NOT_FOUND", "PERMISSION_DENIED", "UNAUTHENTICATED", "UNIMPLEMENTED")
MOST_SHOWN = 300
"""Characters of an answer that are logged."""
MOST_PARSED = 65536
"""Bytes of a message that are looked at."""
LONGEST_DATE = 64
WEB_PAGE = "it answered with a web page, so it may be no OTLP receiver at all"
NOT_READ = "its answer could not be read to its end, so it is not known whether it left points out"
WORD = re.compile(r"\w+")


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
    """Return what an error made of a push; a value that cannot be right stays so."""
    name = type(error).__name__
    return Answer(error=f"{name}: {error}"[:MOST_SEARCHED], kind=name, permanent=isinstance(error, EndpointError))


def of_http(reply: Reply) -> Answer:
    """Return the answer that an HTTP response spells; of one that says 2xx the rest can only add remarks."""
    status, kind = reply.status, reply.headers.get("content-type", "protobuf").lower()
    if 200 <= status < 300:  # noqa: PLR2004
        if "html" in kind:
            return Answer(ok=True, warning=WEB_PAGE)
        if not reply.whole:
            return Answer(ok=True, warning=NOT_READ)
        return taken(reply.body) if "protobuf" in kind else Answer(ok=True)
    text = reply.body[:MOST_SEARCHED].decode(errors="replace").strip()
    said = f"HTTP {status} {reply.reason}".strip()
    return Answer(
        error=f"{said}: {text}" if text and text.isprintable() else said,
        kind=f"HTTP {status}",
        permanent=status not in TRANSIENT_HTTP,
        retry_after=asked_seconds(reply.headers.get("retry-after", "")),
    )


def taken(message: bytes) -> Answer:
    """Return the answer of a receiver that took a push, perhaps without some of its points."""
    response = ExportMetricsServiceResponse()
    try:
        response.ParseFromString(message[:MOST_PARSED])
        partial = response.partial_success
        return Answer(ok=True, rejected=max(partial.rejected_data_points, 0), warning=partial.error_message)
    except Exception:  # noqa: BLE001 - a proxy's page, say: the status counts
        return Answer(ok=True)


def asked_seconds(header: str) -> float:
    """Return the seconds of a Retry-After header, which may also be a date."""
    header = header[:LONGEST_DATE]
    try:
        seconds = float(header)
        return 0.0 if math.isnan(seconds) else max(seconds, 0.0)
    except ValueError:
        pass
    try:
        return max(parsedate_to_datetime(header).timestamp() - time.time(), 0.0)
    except Exception:  # noqa: BLE001 - of what is no date the parser raises many things
        return 0.0


def of_grpc(error: Any) -> Answer:
    """Return the answer that a gRPC error spells."""
    code = error.code().name
    said = f"gRPC {code}: {(error.details() or '')[:MOST_SEARCHED]}"
    return Answer(
        error=said,
        kind=sort(said),
        permanent=code in PERMANENT_GRPC,
        retry_after=_retry_delay(error.trailing_metadata() or ()),
    )


def sort(text: str) -> str:
    """Return what a text has in common with others of one cause, which differ in numbers: ports, hashes."""
    return WORD.sub(lambda found: "" if any(map(str.isdigit, found[0])) else found[0], text[:MOST_SHOWN])


def _retry_delay(metadata: Any) -> float:
    """Return the seconds of a RetryInfo, which servers put into the details of a status."""
    retry = RetryInfo()
    for name, value in metadata:
        try:
            if name == "grpc-status-details-bin":
                for detail in Status.FromString(value[:MOST_PARSED]).details:
                    detail.Unpack(retry)
            elif name == "google.rpc.retryinfo-bin":
                retry.ParseFromString(value[:MOST_PARSED])
        except Exception:  # noqa: BLE001, S112 - garbage must not hide the error itself
            continue
    return max(float(retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9), 0.0)


def redacted(answer: Answer, redactor: Redactor) -> Answer:
    """Return an answer fit for a log: one line that ends, without any secret, which some receivers repeat."""
    error, warning, kind = (
        clean(redactor.clean(text), MOST_SHOWN) for text in (answer.error, answer.warning, answer.kind)
    )
    return replace(answer, error=error, warning=warning, kind=kind)
