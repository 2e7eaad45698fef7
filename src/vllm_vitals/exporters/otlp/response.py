"""The result of a push: what the receiver answered, or why there was no answer, in words that are fit for a log."""

import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse

from vllm_vitals._util.bounds import clean
from vllm_vitals._util.http_response import Reply
from vllm_vitals._util.redact import MOST_SEARCHED, Redactor
from vllm_vitals.exporters.otlp.target import EndpointError, Target

TRANSIENT_STATUSES = (408, 429, 500, 502, 503, 504)
"""HTTP statuses after which the same push may succeed."""
MAX_SHOWN = 300
"""Characters of an answer that are logged."""
MAX_PARSED_BYTES = 65536
"""Bytes of a message that are decoded."""
MAX_DATE = 64
"""Characters of a Retry-After header that are parsed."""
WEB_PAGE = "the answer is a web page, so the endpoint may not be an OTLP receiver"
UNREADABLE = "the answer could not be read to its end, so the number of rejected points is unknown"
WORD = re.compile(r"\w+")


@dataclass
class PushResult:
    """The result of a push."""

    ok: bool = False
    error: str = "no answer"
    kind: str = ""
    """The kind of failure: two errors of one kind may differ in their words."""
    permanent: bool = False
    """Whether the same push fails until the setting or the receiver is changed."""
    retry_after: float = 0.0
    """Seconds for which the receiver asks not to push."""
    rejected: int = 0
    """Points that the receiver left out of a push that it accepted."""
    warning: str = ""


def reported(send: Callable[[bytes], PushResult], message: bytes, target: Target, timeout: float) -> PushResult:
    """Send, and return every failure as a result. The result is redacted: gRPC's errors may hold the headers."""
    try:
        result = send(message)
    except TimeoutError:
        result = PushResult(error=f"no answer within {timeout:g} s", kind="timeout")
    except Exception as error:  # noqa: BLE001 - reported as the push's failure
        result = from_exception(error)
    return redacted(result, target.redactor)


def from_exception(error: BaseException) -> PushResult:
    """Return the result of a push that raised an error; an unusable endpoint stays unusable."""
    name = type(error).__name__
    return PushResult(error=f"{name}: {error}"[:MOST_SEARCHED], kind=name, permanent=isinstance(error, EndpointError))


def from_http(reply: Reply) -> PushResult:
    """Return the result that an HTTP response states; after a status of 2xx the rest only adds a warning."""
    status, kind = reply.status, reply.headers.get("content-type", "protobuf").lower()
    if 200 <= status < 300:  # noqa: PLR2004
        if "html" in kind:
            return PushResult(ok=True, warning=WEB_PAGE)
        if not reply.whole:
            return PushResult(ok=True, warning=UNREADABLE)
        return from_message(reply.body) if "protobuf" in kind else PushResult(ok=True)
    text = reply.body[:MOST_SEARCHED].decode(errors="replace").strip()
    line = f"HTTP {status} {reply.reason}".strip()
    return PushResult(
        error=f"{line}: {text}" if text and text.isprintable() else line,
        kind=f"HTTP {status}",
        permanent=status not in TRANSIENT_STATUSES,
        retry_after=retry_after_seconds(reply.headers.get("retry-after", "")),
    )


def from_message(message: bytes) -> PushResult:
    """Return the result of a push that the receiver accepted, perhaps without some of its points."""
    response = ExportMetricsServiceResponse()
    try:
        response.ParseFromString(message[:MAX_PARSED_BYTES])
        partial = response.partial_success
        return PushResult(ok=True, rejected=max(partial.rejected_data_points, 0), warning=partial.error_message)
    except Exception:  # noqa: BLE001 - for example the page of a proxy: the status counts
        return PushResult(ok=True)


def retry_after_seconds(header: str) -> float:
    """Return the seconds of a Retry-After header, which may also be a date."""
    header = header[:MAX_DATE]
    try:
        seconds = float(header)
        return 0.0 if math.isnan(seconds) else max(seconds, 0.0)
    except ValueError:
        pass
    try:
        return max(parsedate_to_datetime(header).timestamp() - time.time(), 0.0)
    except Exception:  # noqa: BLE001 - the parser raises many kinds of errors for text that is no date
        return 0.0


def failure_kind(text: str) -> str:
    """Return a text without its words that hold digits: ports and hashes differ among failures of one cause."""
    return WORD.sub(lambda found: "" if any(map(str.isdigit, found[0])) else found[0], text[:MAX_SHOWN])


def redacted(result: PushResult, redactor: Redactor) -> PushResult:
    """Return a result that is fit for a log: one short line, without any secret that the receiver repeats."""
    error, warning, kind = (
        clean(redactor.clean(text), MAX_SHOWN) for text in (result.error, result.warning, result.kind)
    )
    return replace(result, error=error, warning=warning, kind=kind)
