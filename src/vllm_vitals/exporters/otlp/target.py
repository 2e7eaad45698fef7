"""The receiver of the pushes, resolved from our settings and the standard variables."""

import re
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from urllib.parse import unquote
from urllib.request import getproxies

import vllm_vitals
from vllm_vitals._util.headers import BINARY, binary
from vllm_vitals._util.redact import Redactor, of_header, of_url, shown_url
from vllm_vitals.config.settings import OtlpSettings, split

SIGNAL_PATH = "/v1/metrics"
USER_AGENT = f"vllm-vitals/{vllm_vitals.__version__}"
QUERY = re.compile(r"[?#].*\Z", re.DOTALL)


class EndpointError(ValueError):
    """An endpoint, a header or a proxy that cannot be used, whatever the receiver does."""


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
    """gRPC without TLS; for HTTP the scheme of the URL decides."""
    compression: str = "none"
    timeout: float = 10.0

    @property
    def tls(self) -> bool:
        """Return whether the connection is encrypted."""
        return not self.insecure if self.protocol == "grpc" else self.endpoint.startswith("https:")

    @property
    def shown(self) -> str:
        """Return the endpoint for a log, without a password."""
        return shown_url(self.endpoint)

    @cached_property
    def redactor(self) -> Redactor:
        """Return the redactor of header values, and of credentials in the URLs of receiver and proxies."""
        headers = [part for value in self.headers.values() for part in of_header(value)]
        proxies = [part for url in getproxies().values() for part in of_url(url) if "@" in url]
        return Redactor([*headers, *of_url(self.endpoint), *proxies])

    @property
    def metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        """Return the headers for gRPC, where the values of names that end with `-bin` are bytes.

        Raises:
            EndpointError: when such a value is not base64.
        """
        try:
            return tuple(
                (name.lower(), binary(name, value) if name.lower().endswith(BINARY) else value)
                for name, value in self.headers.items()
            )
        except ValueError as error:
            raise EndpointError(str(error)) from error


def resolve(settings: OtlpSettings) -> Target | None:
    """Return the target for the settings, `None` without an endpoint."""
    if not settings.enabled or settings.endpoint is None:
        return None
    grpc = settings.protocol == "grpc"
    return Target(
        endpoint=settings.endpoint if grpc else _url(settings.endpoint, settings.signal_path),
        protocol=settings.protocol,
        headers=_headers(settings),
        ca=_text(settings.tls_ca),
        cert=_text(settings.tls_cert),
        key=_text(settings.tls_key),
        insecure=grpc and _insecure(settings),
        compression=settings.compression,
        timeout=settings.timeout,
    )


def _url(endpoint: str, signal_path: bool | None) -> str:  # noqa: FBT001
    append = signal_path if signal_path is not None else split(endpoint).path in ("", "/")
    if not append:
        return endpoint
    bare = QUERY.sub("", endpoint)
    return f"{bare.rstrip('/')}{SIGNAL_PATH}{endpoint[len(bare) :]}"


def _headers(settings: OtlpSettings) -> dict[str, str]:
    """Return the configured headers, with the user and password of an HTTP endpoint as `Authorization`."""
    headers = {name: value.get_secret_value() for name, value in settings.headers.items()}
    parts = split(settings.endpoint or "")
    if settings.protocol != "grpc" and parts.username and "authorization" not in map(str.lower, headers):
        credentials = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Authorization"] = f"Basic {b64encode(credentials.encode()).decode()}"
    return headers


def _insecure(settings: OtlpSettings) -> bool:
    """Return whether to connect without TLS: the scheme decides, then the setting. The default is TLS."""
    scheme = (settings.endpoint or "").partition("://")[0].lower()
    if scheme in ("http", "https"):
        return scheme == "http"
    return bool(settings.insecure)


def _text(path: object) -> str | None:
    return None if path is None else str(path)
