"""Checks of the scrape endpoint: its port, from where it can be reached, and its TLS files."""

import errno
import http.client
import os
import re
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from vllm_vitals.catalog.self_metrics import INFO
from vllm_vitals.cli.doctor.finding import Finding, fail, ok, skip, warn
from vllm_vitals.cli.doctor.launch import DEFAULT_PORT, Launch
from vllm_vitals.config.settings import PrometheusSettings
from vllm_vitals.exporters.prometheus.exporter import addresses
from vllm_vitals.exporters.prometheus.tls import RELOAD_INTERVAL_SECONDS

MAX_PORT = 65535
PORT_ADVICE = "VITALS_PROMETHEUS__PORT=N, with N from 0 to 65535"
CONTAINER_MARKS = (Path("/.dockerenv"), Path("/run/.containerenv"))
TIMEOUT_SECONDS = 2.0
MAX_ANSWER_BYTES = 100_000
TCP_LISTEN = "0A"
"""The state of a listening socket in /proc/net/tcp."""
PROC = Path("/proc")
EXPIRY_WARNING_DAYS = 14
DAY_SECONDS = 86400
WRONG_DATE = (9, 10)
"""OpenSSL's codes for a certificate that is not valid yet, or that has expired."""


@dataclass(frozen=True)
class RunningEndpoint:
    """A scrape endpoint of vllm-vitals that answers."""

    version: str
    ready: bool
    status_text: str


# --- The port


def port(launch: Launch) -> Iterator[Finding]:
    """Check that the port is free, by listening on it; several API servers together need one port."""
    settings = _listening(launch)
    if isinstance(settings, Finding):
        yield settings
        return
    try:
        found = addresses(settings.host)
    except OSError as error:
        yield _bad_host(launch, settings.host, error)
        return
    if not settings.port:
        yield warn(
            "prometheus.port is 0: the system chooses a port, and a scraper cannot know which",
            f"The port is in vLLM's log. For a fixed port set {PORT_ADVICE}.",
        )
        return
    problems = [*_vllms_own(launch, settings.port), *_problems(launch, settings, found)]
    yield from problems or [ok(f"port {settings.port} of {settings.host} ({', '.join(found)}) is free")]


def listen(address: str, number: int) -> OSError | None:
    """Listen for a moment, just as the exporter's server does. Return the error, if there is one."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((address, number))
            probe.listen()
    except OSError as error:
        return error
    return None


def _listening(launch: Launch) -> PrometheusSettings | Finding:
    """Return the settings of the endpoint, or why there will be none."""
    settings = launch.prometheus
    if settings is None:
        return skip("the settings are wrong (see settings)")
    if not settings.enabled:
        return skip("prometheus.enabled is false: there is no scrape endpoint")
    if launch.sidecar:
        return skip(launch.by_sidecar("listens"))
    if launch.api_servers < 1:
        return skip("no API server runs here, so there is no scrape endpoint here")
    return settings


def _vllms_own(launch: Launch, wanted: int) -> Iterator[Finding]:
    theirs = (launch.command.port if launch.command else None) or DEFAULT_PORT
    if theirs == wanted:
        known = launch.command is not None
        found = f"port {theirs} is {'the port' if known else 'by default the port'} of vLLM's own API"
        yield (fail if known else warn)(found, f"Choose another port: {PORT_ADVICE}.")


def _problems(launch: Launch, settings: PrometheusSettings, found: list[str]) -> Iterator[Finding]:
    for address in found:
        if error := listen(address, settings.port):
            first = address == found[0]
            if first or error.errno == errno.EADDRINUSE:
                yield _refused(launch, settings, address, error, essential=first)
            if first:
                return


def _refused(launch: Launch, settings: PrometheusSettings, address: str, error: OSError, *, essential: bool) -> Finding:
    number = settings.port
    where = f"port {number} of {address} (prometheus.port, {launch.origin('prometheus', 'port')})"
    if error.errno != errno.EADDRINUSE:
        return _not_allowed(where, address, error)
    if running := running_endpoint(address, number, tls=settings.tls_cert is not None):
        return _taken_by_us(where, running)
    by = listening_process(number)
    found = f"{where} is in use" + (f" by {by}" if by else "")
    if essential:
        return fail(found, f"Stop that process, or choose another port: {PORT_ADVICE}.{_free(address, number)}")
    return warn(
        found, f"A scraper that tries {address} first reaches that process. Choose another port: {PORT_ADVICE}."
    )


def _taken_by_us(where: str, running: RunningEndpoint) -> Finding:
    found = f"{where} already serves vllm-vitals {running.version}"
    if not running.ready:
        return fail(
            f"{found}, which is not ready: {running.status_text}",
            "Look for errors of vllm-vitals in vLLM's log. A restart of vLLM restarts it too.",
        )
    return warn(
        f"{found}, which is ready",
        f"This is normal if vLLM runs here now. A second vLLM on this machine needs another port: {PORT_ADVICE}.",
    )


def _not_allowed(where: str, address: str, error: OSError) -> Finding:
    if error.errno == errno.EADDRNOTAVAIL:
        return fail(
            f"{where}: {address} is not an address of this machine",
            "Set VITALS_PROMETHEUS__HOST to an address of this machine: localhost, or 0.0.0.0 or :: for all addresses.",
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return fail(f"{where}: this user may not listen on it", f"Choose a port above 1023: {PORT_ADVICE}.")
    return fail(f"{where} cannot be used: {os.strerror(error.errno or 0)}", f"Choose another port: {PORT_ADVICE}.")


def _free(address: str, taken: int) -> str:
    """Return words that name the next port that is free."""
    for number in range(taken + 1, min(taken + 100, MAX_PORT + 1)):
        if listen(address, number) is None:
            return f" {number} is free."
    return ""


def _bad_host(launch: Launch, host: str, error: OSError) -> Finding:
    return fail(
        f"prometheus.host={host!r} ({launch.origin('prometheus', 'host')}) has no address: {error.strerror or error}",
        "Set VITALS_PROMETHEUS__HOST to an address or name of this machine: localhost, or 0.0.0.0 or :: for all "
        "addresses.",
    )


# --- Who uses a port


def running_endpoint(address: str, number: int, *, tls: bool) -> RunningEndpoint | None:
    """Return the scrape endpoint of vllm-vitals that answers on a port, or `None` if there is none."""
    with suppress(OSError, http.client.HTTPException):
        status, text = _get(address, number, "/readyz", tls=tls)
        _, page = _get(address, number, f"/metrics?name[]={INFO.prometheus}", tls=tls)
        found = re.search(rf'^{INFO.prometheus}{{.*\bversion="([^"]*)"', page, re.MULTILINE)
        if found:
            return RunningEndpoint(found[1], status == http.client.OK, text.strip())
    return None


def listening_process(number: int) -> str:
    """Return the process that listens on a port, or `""` if this user may not see it."""
    sockets = {f"socket:[{inode}]" for inode in _listening_inodes(number)}
    for directory in PROC.glob("[0-9]*") if sockets else ():
        with suppress(OSError):  # another user's process, or one that has just ended
            if any(str(link.readlink()) in sockets for link in (directory / "fd").iterdir()):
                return f"process {directory.name} ({(directory / 'comm').read_text().strip()})"
    return ""


def _get(address: str, number: int, path: str, *, tls: bool) -> tuple[int, str]:
    connection = http.client.HTTPConnection(address, number, timeout=TIMEOUT_SECONDS)
    if tls:
        # The question is who answers. Nothing secret is sent.
        context = ssl._create_unverified_context()  # noqa: S323, SLF001
        connection = http.client.HTTPSConnection(address, number, timeout=TIMEOUT_SECONDS, context=context)
    with closing(connection):
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read(MAX_ANSWER_BYTES).decode("utf-8", "replace")


def _listening_inodes(number: int) -> Iterator[str]:
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (PROC / "net" / table).read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == TCP_LISTEN and int(words[1].rpartition(":")[2], 16) == number:
                    yield words[9]


# --- From where it can be reached


def reach(launch: Launch) -> Iterator[Finding]:
    """Tell from where the endpoint can be scraped."""
    settings = _listening(launch)
    if isinstance(settings, Finding):
        yield settings
        return
    try:
        found = addresses(settings.host)
    except OSError:
        yield skip("prometheus.host has no address (see port)")
        return
    if not all(ip_address(address.partition("%")[0]).is_loopback for address in found):
        guard = "with TLS" if settings.tls_cert else "without encryption and without a password"
        yield ok(f"{settings.host}: every machine that reaches this address can scrape it, {guard}")
        return
    inside = in_container(launch)
    where = "container or pod" if inside else "machine"
    yield (warn if inside else ok)(
        f"prometheus.host is {settings.host} ({launch.origin('prometheus', 'host')}): only this {where} can scrape it",
        "If Prometheus runs elsewhere, set VITALS_PROMETHEUS__HOST=0.0.0.0 (all addresses; :: for IPv6 too).",
    )


def in_container(launch: Launch) -> bool:
    """Return whether this looks like a container, where `localhost` is the container alone."""
    return "KUBERNETES_SERVICE_HOST" in launch.environ or any(mark.exists() for mark in CONTAINER_MARKS)


# --- TLS


def tls(launch: Launch) -> Iterator[Finding]:
    """Check that the TLS files are readable, match each other and are in date."""
    settings = launch.prometheus
    if settings is None:
        yield skip("the settings are wrong (see settings)")
        return
    if launch.sidecar:
        yield skip(launch.by_sidecar("listens"))
        return
    if settings.tls_cert is None or settings.tls_key is None:
        yield skip("TLS is off")
        return
    if settings.tls_client_ca and (finding := _client_ca(settings.tls_client_ca)):
        yield finding
    yield _certificate(settings.tls_cert, settings.tls_key)


def _client_ca(path: Path) -> Finding | None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(path)
    except OSError as error:
        return fail(
            f"prometheus.tls_client_ca {path} holds no CA certificate: {_reason(error)}",
            "Set VITALS_PROMETHEUS__TLS_CLIENT_CA to a file of PEM certificates.",
        )
    return None


def _certificate(cert: Path, key: Path) -> Finding:
    files = f"prometheus.tls_cert {cert} with tls_key {key}"
    try:
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(cert, key)
    except OSError as error:
        return fail(
            f"{files} cannot be loaded: {_reason(error)}",
            "tls_cert must be a PEM certificate (chain), tls_key the PEM private key of its first certificate.",
        )
    try:
        left = _days_left(server, cert)
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in WRONG_DATE:
            return fail(f"{files}: {error.verify_message}", "Renew the certificate: scrapers will refuse this one.")
        return warn(f"{files}: {error.verify_message}", "Scrapers that verify certificates may refuse it.")
    if left < EXPIRY_WARNING_DAYS:
        reload = f"The endpoint reloads changed files within {RELOAD_INTERVAL_SECONDS:g} s, without a restart."
        return warn(f"{files}: expires in {left:.0f} days", f"Renew the certificate. {reload}")
    return ok(f"{files}: they match, and the certificate is valid for another {left:.0f} days")


def _days_left(server: ssl.SSLContext, cert: Path) -> float:
    """Return the days until a certificate expires, by a handshake in memory with a client that trusts it."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(cert)
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server, server_side=False),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    for _ in range(4):  # a handshake takes two round trips at most
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    peer = ends[0].getpeercert() or {}
    return (ssl.cert_time_to_seconds(str(peer["notAfter"])) - time.time()) / DAY_SECONDS


def _reason(error: OSError) -> str:
    reason = getattr(error, "reason", None) or error.strerror or str(error)
    return str(reason).replace("_", " ").lower()
