"""Checks of the scrape endpoint: can it listen, and can it be reached."""

import errno
import os
import socket
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

from vllm_vitals.cli.doctor import holder
from vllm_vitals.cli.doctor.finding import Finding, fail, ok, skip, warn
from vllm_vitals.cli.doctor.launch import Launch
from vllm_vitals.cli.doctor.serve_command import DEFAULT_PORT
from vllm_vitals.config.settings import PrometheusSettings
from vllm_vitals.exporters.prometheus.exporter import addresses

HIGHEST = 65535
ALLOWED = "VITALS_PROMETHEUS__PORT=N, from 0 to 65535"
CONTAINER_MARKS = (Path("/.dockerenv"), Path("/run/.containerenv"))


def port(launch: Launch) -> Iterator[Finding]:
    """Check that the port can be listened on, by listening on it; several API servers need one port together."""
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
            f"vLLM's log will tell it. For a fixed one set {ALLOWED}.",
        )
        return
    problems = [*_vllms_own(launch, settings.port), *_problems(launch, settings, found)]
    yield from problems or [ok(f"port {settings.port} of {settings.host} ({', '.join(found)}) can be listened on")]


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
        guard = "with TLS" if settings.tls_cert else "unencrypted and without a password"
        yield ok(f"{settings.host}: every machine that reaches this address can scrape it, {guard}")
    else:
        tell = warn if in_container(launch) else ok
        where = "container or pod" if tell is warn else "machine"
        yield tell(
            f"prometheus.host is {settings.host} ({launch.origin('prometheus', 'host')}): only this {where} can scrape it",
            "For a Prometheus elsewhere set VITALS_PROMETHEUS__HOST=0.0.0.0 (all addresses; :: for IPv6 too).",
        )


def in_container(launch: Launch) -> bool:
    """Tell whether this looks like a container, where `localhost` is nobody else's."""
    return "KUBERNETES_SERVICE_HOST" in launch.environ or any(mark.exists() for mark in CONTAINER_MARKS)


def listen(address: str, number: int) -> OSError | None:
    """Listen for a moment, just as the exporter's server does; return what was in the way."""
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
    settings = launch.prometheus
    if settings is None:
        return skip("the settings are wrong (see settings)")
    if not settings.enabled:
        return skip("prometheus.enabled is false: there is no scrape endpoint")
    if launch.sidecar:
        return skip(launch.by_sidecar("listens"))
    if launch.api_servers < 1:
        return skip("no API server runs here, so nothing listens here")
    return settings


def _vllms_own(launch: Launch, wanted: int) -> Iterator[Finding]:
    theirs = (launch.command.port if launch.command else None) or DEFAULT_PORT
    if theirs == wanted:
        told = launch.command is not None
        found = f"port {theirs} is {'the one' if told else 'by default the one'} that vLLM itself listens on"
        yield (fail if told else warn)(found, f"Choose another: {ALLOWED}.")


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
    if ours := holder.ask(address, number, tls=settings.tls_cert is not None):
        return _ours(where, ours)
    by = holder.process(number)
    found = f"{where} is taken" + (f" by {by}" if by else "")
    if essential:
        return fail(found, f"Stop what holds it, or choose another: {ALLOWED}.{_free(address, number)}")
    return warn(found, f"A scraper that tries {address} first will reach that one. Choose another: {ALLOWED}.")


def _ours(where: str, ours: holder.Ourselves) -> Finding:
    found = f"{where} already serves vllm-vitals {ours.version}"
    if not ours.healthy:
        return fail(
            f"{found}, which is not well: {ours.said}",
            "Search vLLM's log for errors of vllm-vitals; restarting vLLM starts it anew.",
        )
    return warn(
        f"{found}, which is well",
        f"That is as it should be if vLLM runs here now. A second vLLM on this machine needs another port: {ALLOWED}.",
    )


def _not_allowed(where: str, address: str, error: OSError) -> Finding:
    if error.errno == errno.EADDRNOTAVAIL:
        return fail(
            f"{where}: {address} is not an address of this machine",
            "Set VITALS_PROMETHEUS__HOST to one that is: localhost, 0.0.0.0 or :: for all.",
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return fail(f"{where}: this user may not listen on it", f"Choose one above 1023: {ALLOWED}.")
    return fail(f"{where} cannot be listened on: {os.strerror(error.errno or 0)}", f"Choose another: {ALLOWED}.")


def _free(address: str, taken: int) -> str:
    """Return words that name the next port that is free."""
    for number in range(taken + 1, min(taken + 100, HIGHEST + 1)):
        if listen(address, number) is None:
            return f" {number} is free."
    return ""


def _bad_host(launch: Launch, host: str, error: OSError) -> Finding:
    return fail(
        f"prometheus.host={host!r} ({launch.origin('prometheus', 'host')}) has no address: {error.strerror or error}",
        "Set VITALS_PROMETHEUS__HOST to an address or name of this machine: localhost, 0.0.0.0 or :: for all.",
    )
