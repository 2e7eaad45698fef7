"""The host behind an endpoint: its address, its proxy, its certificate. Each can be checked by itself."""

import os
import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from vllm_vitals._util.deadline_socket import Deadline
from vllm_vitals._util.http_connection import Tls, dial
from vllm_vitals._util.redact import shown_url
from vllm_vitals.exporters.otlp.target import Target

HTTPS_PORT, HTTP_PORT = 443, 80
GRPC_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
GRPC_ROOTS = ("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",)
HTTP_ROOTS = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


@dataclass(frozen=True)
class Peer:
    """The host and port of a target."""

    host: str
    port: int
    proxy: str = ""
    """The proxy on the way, without a password."""


def locate(target: Target) -> Peer | None:
    """Return the host of a target, `None` without a host (gRPC over a Unix socket).

    Raises:
        ValueError: when the endpoint is not an address.
    """
    scheme, separator, rest = target.endpoint.partition("://")
    if target.endpoint.startswith("unix"):
        return None
    parts = urlsplit(f"//{rest.lstrip('/') if separator else scheme}")
    if not parts.hostname or not (separator or target.protocol == "grpc"):
        raise ValueError("it names no host")
    # gRPC takes the port of https for any address without one.
    port = parts.port or (HTTP_PORT if target.protocol != "grpc" and not target.tls else HTTPS_PORT)
    shown = shown_url(proxy_url(target, parts.hostname))
    return Peer(parts.hostname, port, shown.partition("://")[2] or shown)


def addresses(peer: Peer) -> list[str]:
    """Return the addresses of a host.

    Raises:
        OSError: when there is none.
    """
    try:
        entries = socket.getaddrinfo(peer.host, peer.port, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise OSError(f"not a host name: {error}") from error
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in entries))


def reach(peer: Peer, tried: list[str], timeout: float) -> str | OSError:
    """Return the first address that accepts a connection, or the error of the last one."""
    last = OSError("no address")
    for address in tried:
        try:
            socket.create_connection((address, peer.port), timeout).close()
        except OSError as error:
            last = error
        else:
            return address
    return last


def shake_hands(target: Target, peer: Peer, address: str, timeout: float) -> str:
    """Return the TLS version of a handshake that checks the certificate as the exporter does.

    Raises:
        OSError: when the handshake fails or takes too long.
    """
    tls = tls_context(target)
    if target.protocol == "grpc":
        tls.set_alpn_protocols(["h2"])
    line = dial(address, peer.port, Deadline(timeout))
    try:
        return Tls(line, tls, peer.host).version
    finally:
        line.close()


def tls_context(target: Target, *, proxy: bool = False) -> ssl.SSLContext:
    """Return the TLS context of a push. A `proxy` never gets our certificate.

    Raises:
        OSError: when a file of a certificate cannot be used.
    """
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusted = Path(target.ca or roots(target))
    if trusted.is_dir():
        tls.load_verify_locations(capath=trusted)
    else:
        trusted.open().close()  # its error names the file
        tls.load_verify_locations(trusted)
    if target.cert and not proxy:
        Path(target.cert).open().close()
        tls.load_cert_chain(target.cert, target.key, password="")  # without it OpenSSL would ask on a terminal
    return tls


def speaks_tls(peer: Peer, address: str, timeout: float) -> bool:
    """Return whether a host answers a TLS handshake, with any certificate."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    with suppress(OSError), socket.create_connection((address, peer.port), timeout) as plain:
        tls.wrap_socket(plain, server_hostname=peer.host).close()
        return True
    return False


def roots(target: Target) -> str:
    """Return the file of trusted CAs if no CA is set."""
    from requests.utils import DEFAULT_CA_BUNDLE_PATH  # noqa: PLC0415 - only when there is a push

    given = (os.environ.get(name, "") for name in (GRPC_ROOTS if target.protocol == "grpc" else HTTP_ROOTS))
    return next(filter(None, given), str(DEFAULT_CA_BUNDLE_PATH))


def proxy_url(target: Target, host: str) -> str:
    """Return the URL of the proxy for a push, with its credentials, empty for none."""
    from requests import utils  # noqa: PLC0415 - only when there is a push

    proxy: str | None
    if target.protocol != "grpc":
        proxy = utils.select_proxy(target.endpoint, utils.get_environ_proxies(target.endpoint))
    elif utils.should_bypass_proxies(
        f"//{host}",
        os.environ.get("no_grpc_proxy"),  # noqa: SIM112 - gRPC spells it so
    ):
        proxy = None
    else:
        proxy = next(filter(None, map(os.environ.get, GRPC_PROXIES)), None)
    return proxy or ""
