"""How far one gets with an OTLP receiver: its name, its port, its certificate, each tried by itself."""

import os
import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from vllm_vitals._util.deadline_socket import Deadline
from vllm_vitals._util.redact import shown_url
from vllm_vitals.exporters.otlp.line import Tls, dial
from vllm_vitals.exporters.otlp.target import Target

HTTPS, HTTP = 443, 80
GRPC_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
GRPC_ROOTS = ("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",)
HTTP_ROOTS = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


@dataclass(frozen=True)
class Peer:
    """Where a target is, as the exporter sees it."""

    host: str
    port: int
    proxy: str = ""
    """The proxy that stands between, without a password."""


def locate(target: Target) -> Peer | None:
    """Return where a target is, `None` when it is no host (gRPC over a Unix socket).

    Raises:
        ValueError: when it is not an address.
    """
    scheme, separator, rest = target.endpoint.partition("://")
    if target.endpoint.startswith("unix"):
        return None
    parts = urlsplit(f"//{rest.lstrip('/') if separator else scheme}")
    if not parts.hostname or not (separator or target.protocol == "grpc"):
        raise ValueError("it names no host")
    # gRPC takes the port of https for any address without one.
    port = parts.port or (HTTP if target.protocol != "grpc" and not target.tls else HTTPS)
    shown = shown_url(proxy_url(target, parts.hostname))
    return Peer(parts.hostname, port, shown.partition("://")[2] or shown)


def addresses(found: Peer) -> list[str]:
    """Return the addresses of a peer's name.

    Raises:
        OSError: when it has none.
    """
    try:
        told = socket.getaddrinfo(found.host, found.port, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise OSError(f"not a host name: {error}") from error
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in told))


def reach(found: Peer, tried: list[str], timeout: float) -> str | OSError:
    """Return the first address that takes a connection, or why the last took none."""
    last = OSError("no address")
    for address in tried:
        try:
            socket.create_connection((address, found.port), timeout).close()
        except OSError as error:
            last = error
        else:
            return address
    return last


def shake_hands(target: Target, found: Peer, address: str, timeout: float) -> str:
    """Return the TLS version that a peer agrees on, its certificate checked as the exporter will.

    Raises:
        OSError: when it does not come to that in time.
    """
    made = context(target)
    if target.protocol == "grpc":
        made.set_alpn_protocols(["h2"])
    line = dial(address, found.port, Deadline(timeout))
    try:
        return Tls(line, made, found.host).version
    finally:
        line.close()


def context(target: Target, *, proxy: bool = False) -> ssl.SSLContext:
    """Return what a peer's certificate is checked with, and, for no proxy, shown ours.

    Raises:
        OSError: when a file cannot be used.
    """
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusted = Path(target.ca or roots(target))
    if trusted.is_dir():
        made.load_verify_locations(capath=trusted)
    else:
        trusted.open().close()  # whose error names the file
        made.load_verify_locations(trusted)
    if target.cert and not proxy:
        Path(target.cert).open().close()
        made.load_cert_chain(target.cert, target.key, password="")  # there is no one to type one
    return made


def speaks_tls(found: Peer, address: str, timeout: float) -> bool:
    """Tell whether a peer answers a TLS greeting, whoever it is."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with suppress(OSError), socket.create_connection((address, found.port), timeout) as plain:
        context.wrap_socket(plain, server_hostname=found.host).close()
        return True
    return False


def roots(target: Target) -> str:
    """Return the file of the CAs that are trusted where no CA is set."""
    from requests.utils import DEFAULT_CA_BUNDLE_PATH  # noqa: PLC0415 - only when there is a push

    given = (os.environ.get(name, "") for name in (GRPC_ROOTS if target.protocol == "grpc" else HTTP_ROOTS))
    return next(filter(None, given), str(DEFAULT_CA_BUNDLE_PATH))


def proxy_url(target: Target, host: str) -> str:
    """Return the proxy that a push will go through, with what is needed to use it, `""` for none."""
    from requests import utils  # noqa: PLC0415 - only when there is a push

    proxy: str | None
    if target.protocol != "grpc":
        proxy = utils.select_proxy(target.endpoint, utils.get_environ_proxies(target.endpoint))
    elif utils.should_bypass_proxies(
        f"//{host}",
        os.environ.get("no_grpc_proxy"),  # noqa: SIM112 - so gRPC spells it
    ):
        proxy = None
    else:
        proxy = next(filter(None, map(os.environ.get, GRPC_PROXIES)), None)
    return proxy or ""
