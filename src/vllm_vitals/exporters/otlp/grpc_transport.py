"""Pushes over gRPC. Only this module imports grpc, and only a push over gRPC imports this module."""

import ssl
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import DESCRIPTOR

from vllm_vitals._util.deadline_socket import Deadline
from vllm_vitals._util.redact import MOST_SEARCHED
from vllm_vitals.exporters.otlp.peer import addresses, locate, shake_hands
from vllm_vitals.exporters.otlp.response import MAX_PARSED_BYTES, PushResult, failure_kind, from_message, reported
from vllm_vitals.exporters.otlp.target import USER_AGENT, Target

METHOD = f"/{DESCRIPTOR.services_by_name['MetricsService'].full_name}/Export"
MAX_MESSAGE_BYTES = 16 * 2**20
"""Size of the message with which a receiver confirms a push. With a longer message the push counts as failed."""
OPTIONS = (("grpc.primary_user_agent", USER_AGENT), ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES))
PERMANENT = ("INVALID_ARGUMENT", "NOT_FOUND", "PERMISSION_DENIED", "UNAUTHENTICATED", "UNIMPLEMENTED")
"""Status codes of a push that fails until the setting or the receiver is changed."""


class GrpcTransport:
    """OTLP over gRPC."""

    def __init__(self, target: Target, timeout: float) -> None:
        self._target = target
        self._timeout = timeout
        self._handshake_checked = False
        self._metadata = target.metadata
        compression = grpc.Compression.Gzip if target.compression == "gzip" else grpc.Compression.NoCompression
        address = _address(target.endpoint)
        if target.insecure:
            self._channel = grpc.insecure_channel(address, options=OPTIONS, compression=compression)
        else:
            credentials = _credentials(target)
            self._channel = grpc.secure_channel(address, credentials, options=OPTIONS, compression=compression)
        # Bytes in both directions. The service's stub would encode and decode whole messages at once, and would report
        # a confirmed push as failed when the message that confirms it cannot be decoded.
        self._export: Callable[..., bytes] = self._channel.unary_unary(METHOD)

    def send(self, message: bytes) -> PushResult:
        """Send a push; see `Transport`."""
        return reported(self._send, message, self._target, self._timeout)

    def _send(self, message: bytes) -> PushResult:
        deadline = Deadline(self._timeout)
        if not self._handshake_checked and (refusal := _check_handshake(self._target, deadline)):
            return refusal
        self._handshake_checked = True
        try:
            with _uninstrumented():
                return from_message(self._export(message, timeout=deadline.left(), metadata=self._metadata))
        except grpc.RpcError as error:
            result = from_error(error)
        if "handshake" in result.error.lower():  # gRPC connected anew by itself and met another certificate
            with suppress(TimeoutError):
                return _check_handshake(self._target, deadline) or result
        return result

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()


def from_error(error: Any) -> PushResult:
    """Return the result of a push that gRPC reports as failed."""
    code = error.code().name
    text = f"gRPC {code}: {(error.details() or '')[:MOST_SEARCHED]}"
    return PushResult(
        error=text,
        kind=failure_kind(text),
        permanent=code in PERMANENT,
        retry_after=_retry_delay(error.trailing_metadata() or ()),
    )


def _retry_delay(metadata: Iterable[tuple[str, Any]]) -> float:
    """Return the seconds of a RetryInfo, which servers put into the details of a status."""
    retry = RetryInfo()
    for name, value in metadata:
        try:
            if name == "grpc-status-details-bin":
                for detail in Status.FromString(value[:MAX_PARSED_BYTES]).details:
                    detail.Unpack(retry)
            elif name == "google.rpc.retryinfo-bin":
                retry.ParseFromString(value[:MAX_PARSED_BYTES])
        except Exception:  # noqa: BLE001, S112 - garbage must not hide the error itself
            continue
    return max(float(retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9), 0.0)


def _uninstrumented() -> AbstractContextManager[Any]:
    """Ask OpenTelemetry's instrumentation of gRPC, where the process uses it, not to trace a push as vLLM's work."""
    utils = sys.modules.get("opentelemetry.instrumentation.utils")
    suppressed: Any = getattr(utils, "suppress_instrumentation", nullcontext)
    entered: AbstractContextManager[Any] = suppressed()
    return entered


def _address(endpoint: str) -> str:
    """Return the address for gRPC, which has no use for a user and a password."""
    if endpoint.startswith("unix"):
        return endpoint
    address = urlsplit(endpoint).netloc if "://" in endpoint else endpoint
    return address.rpartition("@")[2] or endpoint


def _check_handshake(target: Target, deadline: Deadline) -> PushResult | None:
    """Return why a TLS handshake fails, `None` if it succeeds or only gRPC itself can try.

    gRPC's own handshake hardly says why it failed, and gRPC's core writes a line to stderr at each failure.
    """
    try:
        found = locate(target) if target.tls else None
        if found is None or found.proxy:
            return None
        shake_hands(target, found, addresses(found)[0], deadline.left())
    except ssl.SSLError as error:
        return PushResult(error=f"TLS: {error}", kind=f"TLS {getattr(error, 'reason', '')}")
    except (OSError, ValueError):
        return None  # gRPC describes an unreachable host well, and may know another address
    return None


def _credentials(target: Target) -> grpc.ChannelCredentials:
    ca, key, cert = (path and Path(path).read_bytes() for path in (target.ca, target.key, target.cert))
    return grpc.ssl_channel_credentials(ca or None, key or None, cert or None)
