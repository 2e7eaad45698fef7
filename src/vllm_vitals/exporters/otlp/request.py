"""OTLP over HTTP as bytes: where a push goes, through which proxy, and what is said there."""

from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import SplitResult, quote, unquote, urlsplit

import vllm_vitals
from vllm_vitals._util.redact import shown_url
from vllm_vitals.exporters.otlp.peer import HTTP, HTTPS, proxy_url
from vllm_vitals.exporters.otlp.target import EndpointError, Target

PORTS = {"http": HTTP, "https": HTTPS}
UNQUOTED = "/%:=&?~+!$,;'@()*[]"
USER_AGENT = f"vllm-vitals/{vllm_vitals.__version__}"
OURS = frozenset({
    "accept-encoding", "connection", "content-encoding", "content-length", "content-type", "keep-alive",
    "transfer-encoding", "user-agent",
})  # fmt: skip
"""Headers that say how a push is sent: only who sends it can know."""


@dataclass(frozen=True)
class Place:
    """A host to connect to."""

    host: str
    port: int
    tls: bool
    proof: str = ""
    """What a proxy wants as `Proxy-Authorization`."""
    shown: str = ""

    @property
    def authority(self) -> str:
        """Return host and port as a request names them."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Request:
    """Where pushes go, and the heads of what is sent there."""

    receiver: Place
    proxy: Place | None
    head: str
    """Of every push, without its length."""

    @property
    def tunnel(self) -> bytes:
        """Return what opens a way through the proxy."""
        to = self.receiver.authority
        return f"CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n{_proof(self.proxy)}User-Agent: {USER_AGENT}\r\n\r\n".encode()

    def push(self, body: bytes, *, packed: bool) -> bytes:
        """Return a request."""
        coding = "Content-Encoding: gzip\r\n" if packed else ""
        return f"{self.head}{coding}Content-Length: {len(body)}\r\n\r\n".encode("latin-1") + body


def request(target: Target) -> Request:
    """Return how a target is spoken to.

    Raises:
        EndpointError: when nobody could.
    """
    parts, receiver = _place(target.endpoint, "the endpoint")
    url = proxy_url(target, receiver.host)
    proxy = _place(url if "://" in url else f"http://{url}", "the proxy")[1] if url else None
    path = quote(parts._replace(scheme="", netloc="", fragment="").geturl() or "/", safe=UNQUOTED)
    if not path.startswith("/"):
        path = f"/{path}"
    own = {name.lower(): value for name, value in target.headers.items() if name.lower() not in OURS}
    usual = receiver.port == PORTS[parts.scheme]
    host = own.pop("host", receiver.authority.removesuffix(f":{receiver.port}") if usual else receiver.authority)
    through = proxy is not None and not receiver.tls
    where = f"http://{receiver.authority}{path}" if through else path
    head = (
        f"POST {where} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: {USER_AGENT}\r\nAccept-Encoding: identity\r\n"
        f"Content-Type: application/x-protobuf\r\n{_proof(proxy) if through else ''}{_lines(own)}"
    )
    return Request(receiver, proxy, head)


def _place(url: str, what: str) -> tuple[SplitResult, Place]:
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
    proof = f"Basic {b64encode(pair.encode()).decode()}" if parts.username else ""
    return parts, Place(
        host, PORTS[parts.scheme] if port is None else port, parts.scheme == "https", proof, shown_url(url)
    )


def _reason(url: str, error: ValueError) -> str:
    if "@" in url:
        return "what stands before the @ must be percent-encoded, but for letters and digits"
    with suppress(ValueError):
        urlsplit(url).port  # noqa: B018
        return f"it names no host ({type(error).__name__})"
    return "its port must be a number from 0 to 65535"


def _proof(proxy: Place | None) -> str:
    return f"Proxy-Authorization: {proxy.proof}\r\n" if proxy and proxy.proof else ""


def _lines(headers: Mapping[str, str]) -> str:
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items())
