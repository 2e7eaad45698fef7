"""The check of the push: its target, whether the receiver can be reached, and its response to an empty push."""

import ssl
import threading
from collections.abc import Iterator

from vllm_vitals.cli.doctor.finding import Finding, fail, ok, skip, warn
from vllm_vitals.cli.doctor.launch import Launch
from vllm_vitals.config.settings import OtlpSettings
from vllm_vitals.exporters.otlp.peer import Peer, addresses, locate, reach, shake_hands, speaks_tls
from vllm_vitals.exporters.otlp.target import Target, resolve

MAX_WAIT_SECONDS = 5.0
"""Longest wait for each response of a receiver."""
USUAL_PORTS = {4317: "grpc", 4318: "http/protobuf"}
UNTRUSTED = (18, 19, 20, 21)
"""OpenSSL's codes for a certificate whose CA is not trusted."""
OTHER_NAME = (62, 64)
"""OpenSSL's codes for a certificate of another host or address."""
BUSY = ("HTTP 429", "HTTP 503", "gRPC RESOURCE_EXHAUSTED")
DENIED = ("HTTP 401", "HTTP 403", "gRPC UNAUTHENTICATED", "gRPC PERMISSION_DENIED")
ELSEWHERE = ("HTTP 3", "HTTP 404", "HTTP 405", "gRPC UNIMPLEMENTED", "gRPC NOT_FOUND")
SET_ENDPOINT = "Correct OTEL_EXPORTER_OTLP_ENDPOINT (or VITALS_OTLP__ENDPOINT)."
SET_CA = (
    "If a CA of your own signed it, or it signed itself, set OTEL_EXPORTER_OTLP_CERTIFICATE (VITALS_OTLP__TLS_CA) to the "
    "PEM file of that CA."
)


def receiver(launch: Launch) -> Iterator[Finding]:
    """Check that the receiver of the push can be reached and accepts a push."""
    settings = launch.otlp
    if settings is None:
        yield skip("the settings are wrong (see settings)")
    elif settings.endpoint is None:
        yield skip("no OTLP endpoint is set: nothing is pushed")
    elif not settings.enabled:
        yield skip(f"the push is switched off (otlp.enabled, {launch.origin('otlp', 'enabled')})")
    elif launch.sidecar:
        yield skip(launch.by_sidecar("pushes"))
    elif launch.api_servers < 1:
        yield skip("no API server runs here, so nothing is pushed from here")
    elif target := resolve(settings):
        yield _target(launch, settings, target)
        yield from _try_out(target)


def _target(launch: Launch, settings: OtlpSettings, target: Target) -> Finding:
    headers = f"headers {', '.join(sorted(target.headers))}" if target.headers else "no headers"
    tls = f"TLS {'on' if target.tls else 'off'}"
    if "://" not in target.endpoint:
        tls += " (no scheme: otlp.insecure decides)"
    return ok(
        f"{target.shown} ({launch.origin('otlp', 'endpoint')}), {target.protocol}, {tls}, every {settings.interval:g} s, "
        f"timeout {settings.timeout:g} s, {settings.temporality}, {settings.histograms} histograms, "
        f"compression {settings.compression}, {headers}"
    )


def _try_out(target: Target) -> Iterator[Finding]:
    """Try one step after the other, as far as possible."""
    try:
        found = locate(target)
    except ValueError as error:
        yield fail(f"{target.shown} is not an address: {error}", SET_ENDPOINT)
        return
    address = ""
    if found is None:
        yield skip(f"{target.shown} is a Unix socket: there is no name or port to check")
    elif found.proxy:
        yield ok(f"the push goes through the proxy {found.proxy}; the proxy looks up the name and connects to the port")
    else:
        for finding in _steps(target, found):
            yield finding.finding
            if not finding.address:
                return
            address = finding.address
    yield _push(target, found, address)


class _Step:
    """A finding of one step, and the address for the next step; empty if there can be none."""

    def __init__(self, finding: Finding, address: str = "") -> None:
        self.finding = finding
        self.address = address


def _steps(target: Target, found: Peer) -> Iterator[_Step]:
    wait = min(target.timeout, MAX_WAIT_SECONDS)
    try:
        known = addresses(found)
    except OSError as error:
        yield _Step(fail(f"{found.host} has no address: {error.strerror or error}", f"{SET_ENDPOINT} Or check DNS."))
        return
    yield _Step(ok(f"{found.host} is {', '.join(known)}"), known[0])
    address = reach(found, known, wait)
    if isinstance(address, OSError):
        yield _Step(_unreachable(target, found, address, wait))
        return
    yield _Step(ok(f"port {found.port} of {address} accepts connections"), address)
    if target.tls:
        try:
            version = shake_hands(target, found, address, wait)
        except OSError as error:
            yield _Step(_no_tls(target, found, error))
        else:
            yield _Step(ok(f"{version}, with a trusted certificate of {found.host}"), address)


def _unreachable(target: Target, found: Peer, error: OSError, wait: float) -> Finding:
    where = f"port {found.port} of {found.host}"
    if isinstance(error, ConnectionRefusedError):
        what = f"{where} refuses connections: nothing listens there"
        advice = f"Start the receiver, or {SET_ENDPOINT[0].lower()}{SET_ENDPOINT[1:]}"
    elif isinstance(error, TimeoutError):
        what = f"{where} does not answer within {wait:g} s"
        advice = f"Check firewalls and network policies on the way, or {SET_ENDPOINT[0].lower()}{SET_ENDPOINT[1:]}"
    else:
        what = f"{where} cannot be reached: {error.strerror or error}"
        advice = SET_ENDPOINT
    return fail(what, advice + _protocol_hint(target, found))


def _no_tls(target: Target, found: Peer, error: OSError) -> Finding:
    where = f"{found.host}:{found.port}"
    if isinstance(error, ssl.SSLCertVerificationError):
        what = f"the certificate of {where} is not accepted: {error.verify_message}"
        if error.verify_code in UNTRUSTED:
            return fail(what, f"It is not signed by the CA in {target.ca} (otlp.tls_ca)." if target.ca else SET_CA)
        if error.verify_code in OTHER_NAME:
            return fail(what, f"Write the endpoint with a name that the certificate has. {SET_ENDPOINT}")
        return fail(what, "The receiver needs another certificate. Also check the clock of this machine.")
    if isinstance(error, ssl.SSLError) and error.reason in ("NO_CERTIFICATE_OR_CRL_FOUND", "PEM_LIB", "NO_START_LINE"):
        return fail(
            f"a file of otlp.tls_ca, tls_cert or tls_key cannot be used: {error.reason.replace('_', ' ').lower()}",
            "Each must be PEM: certificates in the first two, and the private key of tls_cert in the third.",
        )
    if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
        return fail("otlp.tls_key is not the key of otlp.tls_cert", "Set both to files that match.")
    plain = "If the receiver has no TLS, write the endpoint with http://."
    if "://" not in target.endpoint:
        plain = (
            "An endpoint without a scheme means TLS. If the receiver has no TLS, write http:// before the endpoint, or set "
            "OTEL_EXPORTER_OTLP_INSECURE=true."
        )
    reason = str(getattr(error, "reason", None) or error.strerror or error).replace("_", " ").lower()
    return fail(f"{where} fails the TLS handshake: {reason}", plain + _protocol_hint(target, found))


def _push(target: Target, found: Peer | None, address: str) -> Finding:
    """Send one push without metrics, with the exporter's transport."""
    from vllm_vitals.exporters.otlp.response import PushResult  # noqa: PLC0415 - heavy, and only when there is a push

    wait = min(target.timeout, 2 * MAX_WAIT_SECONDS)
    results: list[PushResult] = []
    # On its own thread: the lookup of a name ignores every timeout.
    sender = threading.Thread(target=_send, args=(target, wait, results), daemon=True)
    sender.start()
    sender.join(wait + 1)
    result = results[0] if results else PushResult(error=f"no answer within {wait:g} s")
    if result.ok and (result.rejected or result.warning):
        return warn(
            f"an empty push was accepted, with a warning: {result.warning or f'{result.rejected} points rejected'}",
            "The receiver's documentation explains this warning.",
        )
    if result.ok:
        return ok("an empty push was accepted")
    what = f"an empty push was not accepted: {result.error}"
    if result.error.startswith(BUSY):
        return warn(what, "The receiver is busy. The plugin retries at every interval and loses nothing.")
    return fail(what, _advice(target, found, address, result.error))


def _send(target: Target, wait: float, results: list[object]) -> None:
    from vllm_vitals.exporters.otlp.response import from_exception, redacted  # noqa: PLC0415
    from vllm_vitals.exporters.otlp.transport import connect  # noqa: PLC0415

    try:
        transport = connect(target, wait)
        results.append(transport.send(b""))
        transport.close()
    except Exception as error:  # noqa: BLE001 - reported as the failure of the push
        results.append(redacted(from_exception(error), target.redactor))


def _advice(target: Target, found: Peer | None, address: str, error: str) -> str:
    if error.startswith(DENIED):
        return (
            "Set OTEL_EXPORTER_OTLP_HEADERS to the headers that the receiver needs, such as authorization=Bearer%20TOKEN. "
            "Names and values there are percent-encoded. VITALS_OTLP__HEADERS takes JSON."
        )
    if error.startswith(ELSEWHERE):
        path = (
            " OTEL_EXPORTER_OTLP_ENDPOINT gets /v1/metrics appended. OTEL_EXPORTER_OTLP_METRICS_ENDPOINT is used unchanged."
            if target.protocol != "grpc"
            else ""
        )
        return f"That address receives no OTLP metrics. {SET_ENDPOINT}{path}{_protocol_hint(target, found)}"
    if not target.tls and found and address and speaks_tls(found, address, min(target.timeout, MAX_WAIT_SECONDS)):
        return f"The receiver needs TLS: write the endpoint with https://.{_protocol_hint(target, found)}"
    return f"Look at the receiver's log, and check that it is an OTLP receiver. {SET_ENDPOINT}{_protocol_hint(target, found)}"


def _protocol_hint(target: Target, found: Peer | None) -> str:
    """Return advice if the port usually belongs to the other protocol."""
    usual = USUAL_PORTS.get(found.port, target.protocol) if found else target.protocol
    if found is None or usual == target.protocol:
        return ""
    other = next(port for port, protocol in USUAL_PORTS.items() if protocol == target.protocol)
    return (
        f" Port {found.port} is usually for {usual}, but the protocol is {target.protocol}. Set "
        f"OTEL_EXPORTER_OTLP_PROTOCOL={usual}, or use port {other}."
    )
