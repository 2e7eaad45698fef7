"""Where OTLP is pushed to, resolved from our settings and the standard variables."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from vllm_vitals.settings import OtlpSettings, without_password

SIGNAL_PATH = "/v1/metrics"


@dataclass(frozen=True)
class Target:
    """One receiver and how to reach it."""

    endpoint: str
    """A URL, with the signal's path for HTTP."""
    protocol: str
    """grpc or http/protobuf."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    insecure: bool = False
    """gRPC without TLS; for HTTP the URL's scheme says it."""
    compression: str = "none"
    timeout: float = 10.0

    @property
    def tls(self) -> bool:
        """Tell whether the connection is encrypted."""
        return not self.insecure if self.protocol == "grpc" else self.endpoint.startswith("https:")

    @property
    def shown(self) -> str:
        """Return the endpoint as it may be logged: without a password that it may hold."""
        return without_password(self.endpoint)


def resolve(settings: OtlpSettings) -> Target | None:
    """Return the target that settings describe, `None` without an endpoint."""
    if not settings.enabled or settings.endpoint is None:
        return None
    grpc = settings.protocol == "grpc"
    return Target(
        endpoint=settings.endpoint if grpc else _url(settings.endpoint, settings.signal_path),
        protocol=settings.protocol,
        headers={name: value.get_secret_value() for name, value in settings.headers.items()},
        ca=_text(settings.tls_ca),
        cert=_text(settings.tls_cert),
        key=_text(settings.tls_key),
        insecure=grpc and _insecure(settings),
        compression=settings.compression,
        timeout=settings.timeout,
    )


def _url(endpoint: str, signal_path: bool | None) -> str:  # noqa: FBT001
    append = signal_path if signal_path is not None else urlsplit(endpoint).path in ("", "/")
    return f"{endpoint.rstrip('/')}{SIGNAL_PATH}" if append else endpoint


def _insecure(settings: OtlpSettings) -> bool:
    """Tell whether to go without TLS: a scheme decides, then the setting; without either there is TLS."""
    scheme = (settings.endpoint or "").partition("://")[0].lower()
    if scheme in ("http", "https"):
        return scheme == "http"
    return bool(settings.insecure)


def _text(path: object) -> str | None:
    return None if path is None else str(path)
