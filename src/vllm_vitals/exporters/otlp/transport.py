"""Sends pushes, over HTTP here; retrying is left to the exporter, which waits for the next interval."""

import gzip
from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import SplitResult, quote, unquote, urlsplit

from vllm_vitals._util.deadline_socket import Deadline
from vllm_vitals._util.http_connection import Line, Tls, dial
from vllm_vitals._util.http_response import read_reply
from vllm_vitals._util.redact import shown_url
from vllm_vitals.exporters.otlp.peer import HTTP_PORT, HTTPS_PORT, proxy_url, tls_context
from vllm_vitals.exporters.otlp.response import PushResult, from_http, reported
from vllm_vitals.exporters.otlp.target import USER_AGENT, EndpointError, Target

GZIP_LEVEL = 3
"""A level of 5 takes twice as long and saves 8 % of the bytes."""
PORTS = {"http": HTTP_PORT, "https": HTTPS_PORT}
UNQUOTED = "/%:=&?~+!$,;'@()*[]"
"""Characters of a path that are sent as they are."""
RESERVED = frozenset(
    {
        "accept-encoding",
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "keep-alive",
        "transfer-encoding",
        "user-agent",
    }
)
"""Headers that describe how a push is sent: a setting cannot change them."""


class Transport(Protocol):
    """Sends pushes one after the other."""

    def send(self, message: bytes) -> PushResult:
        """Send an encoded request and return the result, after the target's timeout at the latest."""

    def close(self) -> None:
        """Close the connection."""


def connect(target: Target, timeout: float) -> Transport:
    """Return a transport to a target that gives up after `timeout` seconds.

    Raises:
        OSError: when a file of a certificate cannot be used.
        EndpointError: when nothing can be sent to such an endpoint.
    """
    if target.protocol != "grpc":
        return HttpTransport(target, timeout)
    try:
        # Not every image in which HTTP works has a grpc, or one that fits to its protobuf.
        from vllm_vitals.exporters.otlp.grpc_transport import GrpcTransport  # noqa: PLC0415
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        advice = "set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf, and the endpoint for it"
        raise EndpointError(f"grpc cannot be used here ({reason}): {advice}") from error
    return GrpcTransport(target, timeout)


class HttpTransport:
    """OTLP over HTTP with protobuf, on a connection that is used again. All steps of a push share one deadline."""

    def __init__(self, target: Target, timeout: float) -> None:
        self._target = target
        self._timeout = timeout
        self._request = http_request(target)
        self._context = tls_context(target) if target.tls else None
        if self._context is not None:
            self._context.set_alpn_protocols(["http/1.1"])
        self._line: Line | None = None
        """The connection, while it can be used again."""

    def send(self, message: bytes) -> PushResult:
        """Send a push; see `Transport`."""
        return reported(self._send, message, self._target, self._timeout)

    def _send(self, message: bytes) -> PushResult:
        compressed = self._target.compression == "gzip"
        body = gzip.compress(message, GZIP_LEVEL) if compressed else message
        deadline = Deadline(self._timeout)
        line = self._reused(deadline) or self._new(deadline)
        try:
            line.send(self._request.push(body, compressed=compressed))
            reply = read_reply(line.receive)
        except BaseException:
            line.close()
            raise
        if reply.lasting:
            self._line = line
        else:
            line.close()
        return from_http(reply)

    def close(self) -> None:
        """Close the connection."""
        line, self._line = self._line, None
        if line is not None:
            line.close()

    def _reused(self, deadline: Deadline) -> Line | None:
        """Return the previous connection, unless its peer has sent anything since, or has closed it."""
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
                line = Tls(line, tls_context(self._target, proxy=True), proxy.host.rstrip("."))
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


@dataclass(frozen=True)
class Host:
    """A host to connect to."""

    host: str
    port: int
    tls: bool
    credentials: str = ""
    """The `Proxy-Authorization` that a proxy wants."""
    shown: str = ""

    @property
    def authority(self) -> str:
        """Return host and port as a request names them."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class HttpRequest:
    """Where pushes go, and the heads of the requests."""

    receiver: Host
    proxy: Host | None
    head: str
    """The head of every push, without its length."""

    @property
    def tunnel(self) -> bytes:
        """Return the request that opens a tunnel through the proxy."""
        to = self.receiver.authority
        head = f"CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n{_proxy_header(self.proxy)}User-Agent: {USER_AGENT}\r\n\r\n"
        return head.encode()

    def push(self, body: bytes, *, compressed: bool) -> bytes:
        """Return the request of a push."""
        coding = "Content-Encoding: gzip\r\n" if compressed else ""
        return f"{self.head}{coding}Content-Length: {len(body)}\r\n\r\n".encode("latin-1") + body


def http_request(target: Target) -> HttpRequest:
    """Return the requests for a target.

    Raises:
        EndpointError: when nothing can be sent to such an endpoint.
    """
    parts, receiver = _host(target.endpoint, "the endpoint")
    url = proxy_url(target, receiver.host)
    proxy = _host(url if "://" in url else f"http://{url}", "the proxy")[1] if url else None
    path = quote(parts._replace(scheme="", netloc="", fragment="").geturl() or "/", safe=UNQUOTED)
    if not path.startswith("/"):
        path = f"/{path}"
    own = {name.lower(): value for name, value in target.headers.items() if name.lower() not in RESERVED}
    default_port = receiver.port == PORTS[parts.scheme]
    host = own.pop("host", receiver.authority.removesuffix(f":{receiver.port}") if default_port else receiver.authority)
    forwarded = proxy is not None and not receiver.tls
    where = f"http://{receiver.authority}{path}" if forwarded else path
    head = (
        f"POST {where} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: {USER_AGENT}\r\nAccept-Encoding: identity\r\n"
        f"Content-Type: application/x-protobuf\r\n{_proxy_header(proxy) if forwarded else ''}{_header_lines(own)}"
    )
    return HttpRequest(receiver, proxy, head)


def _host(url: str, what: str) -> tuple[SplitResult, Host]:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        if ":" not in host:
            host = host.encode("idna").decode()
    except ValueError as error:
        raise EndpointError(f"{what} {shown_url(url)} is no address: {_reason(url, error)}") from None
    if parts.scheme not in PORTS or not host:
        raise EndpointError(f"{what} {shown_url(url)} must begin with http:// or https:// and name a host")
    pair = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
    credentials = f"Basic {b64encode(pair.encode()).decode()}" if parts.username else ""
    chosen = PORTS[parts.scheme] if port is None else port
    return parts, Host(host, chosen, parts.scheme == "https", credentials, shown_url(url))


def _reason(url: str, error: ValueError) -> str:
    if "@" in url:
        return "everything before the @ must be percent-encoded, except letters and digits"
    with suppress(ValueError):
        urlsplit(url).port  # noqa: B018
        return f"it names no host ({type(error).__name__})"
    return "its port must be a number from 0 to 65535"


def _proxy_header(proxy: Host | None) -> str:
    return f"Proxy-Authorization: {proxy.credentials}\r\n" if proxy and proxy.credentials else ""


def _header_lines(headers: Mapping[str, str]) -> str:
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items())
