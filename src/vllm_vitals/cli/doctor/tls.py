"""The check of certificate and key: a handshake with ourselves, in memory."""

import ssl
import time
from collections.abc import Iterator
from pathlib import Path

from vllm_vitals.cli.doctor.finding import Finding, fail, ok, skip, warn
from vllm_vitals.cli.doctor.launch import Launch
from vllm_vitals.exporters.prometheus.exporter import LOOK

SOON = 14
"""Days before its end from which a certificate is warned of."""
DAY = 86400
WRONG_DATE = (9, 10)
"""OpenSSL's codes for a certificate that is not valid yet, or no longer."""


def tls(launch: Launch) -> Iterator[Finding]:
    """Check that the TLS files are what they should be, fit together and are in date."""
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
    what = f"prometheus.tls_cert {cert} with tls_key {key}"
    try:
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(cert, key)
    except OSError as error:
        return fail(
            f"{what} cannot be loaded: {_reason(error)}",
            "tls_cert must be a PEM certificate (chain), tls_key the PEM private key of its first certificate.",
        )
    try:
        left = _days_left(server, cert)
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in WRONG_DATE:
            return fail(f"{what}: {error.verify_message}", "Renew the certificate: scrapers will refuse this one.")
        return warn(f"{what}: {error.verify_message}", "Scrapers that verify may refuse it.")
    if left < SOON:
        advice = f"Renew it: files that change are read anew within {LOOK:g} s, without a restart."
        return warn(f"{what}: expires in {left:.0f} days", advice)
    return ok(f"{what}: fit together, valid for another {left:.0f} days")


def _days_left(server: ssl.SSLContext, cert: Path) -> float:
    """Return the days that a certificate is still valid, by shaking hands with a client that trusts it."""
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
    return (ssl.cert_time_to_seconds(str(peer["notAfter"])) - time.time()) / DAY


def _reason(error: OSError) -> str:
    reason = getattr(error, "reason", None) or error.strerror or str(error)
    return str(reason).replace("_", " ").lower()
