"""Every setting with its default and its allowed values, declared once.

`vllm_vitals.config.load` reads them from the environment and a file.
"""

import re
from pathlib import Path
from typing import Literal
from urllib.parse import SplitResult, urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from vllm_vitals._util.files import read
from vllm_vitals._util.headers import BINARY, binary
from vllm_vitals._util.redact import shown_url
from vllm_vitals.catalog.buckets import check
from vllm_vitals.catalog.slo import MAX_SLOS, OBJECTIVES
from vllm_vitals.config.types import (
    Duration,
    File,
    FinishReason,
    Number,
    Peak,
    Price,
    Section,
    Share,
    Socket,
    TokenRange,
    Whole,
)

HEADER_NAME = re.compile(r"[A-Za-z0-9._-]+")
"""Header names that gRPC allows. HTTP allows a few more characters, which no receiver uses."""


def split(address: str) -> SplitResult:
    """Return the parts of a URL, or of a host and port alone. Raise `ValueError` for an unclosed bracket."""
    return urlsplit(address if "://" in address else f"//{address}")


class PrometheusSettings(Section):
    """The scrape endpoint."""

    enabled: bool = Field(True, description="Serve a scrape endpoint.")
    host: str = Field("localhost", min_length=1, description="Address to listen on; 0.0.0.0 or :: for all addresses.")
    port: Whole = Field(9464, ge=0, le=65535, description="Port to listen on; 0 lets the system choose one.")
    tls_cert: File | None = Field(
        None,
        description="PEM certificate (chain). Together with tls_key it enables HTTPS. All three files are reloaded when "
        "they change.",
    )
    tls_key: File | None = Field(None, description="PEM private key of tls_cert.")
    tls_client_ca: File | None = Field(None, description="PEM CA that client certificates must be signed by (mTLS).")
    include_native: bool = Field(
        False,
        description="Serve vLLM's own metrics here too, from our thread. Then /metrics on the serving event loop need "
        "not be scraped.",
    )
    join_native: bool = Field(
        False,
        description="Show our metrics on vLLM's own /metrics too, which is rendered on the serving event loop. No effect "
        "with several API servers or a sidecar.",
    )
    retry_interval: Number = Field(
        5.0, ge=0.1, le=3600, description="Seconds between attempts to listen while the port cannot be used."
    )

    @field_validator("tls_key")
    @classmethod
    def _open(cls, path: Path | None) -> Path | None:
        try:
            content = b"" if path is None else read(path)
        except OSError as error:
            raise ValueError(f"must be a file that this process can read: {error}") from error
        if b"ENCRYPTED" in content:
            raise ValueError("must not be encrypted: nobody can type its passphrase")
        return path

    @model_validator(mode="after")
    def _consistent(self) -> "PrometheusSettings":
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key must be set together")
        if self.tls_client_ca and not self.tls_cert:
            raise ValueError("tls_client_ca needs tls_cert and tls_key")
        if self.include_native and self.join_native:
            raise ValueError(
                "include_native and join_native together would show each metric twice: set only one of them"
            )
        return self


class OtlpSettings(Section):
    """The push over OTLP; on as soon as an endpoint is set."""

    enabled: bool = Field(True, description="Push if an endpoint is set.")
    endpoint: str | None = Field(
        None, min_length=1, description="URL of the receiver, such as http://collector:4318; for gRPC also host:port."
    )
    signal_path: bool | None = Field(
        None, description="Append /v1/metrics to the endpoint for HTTP; by default only if the endpoint has no path."
    )
    protocol: Literal["http/protobuf", "grpc"] = Field("http/protobuf", description="Protocol of the push.")
    headers: dict[str, SecretStr] = Field(
        default_factory=dict, description="Headers of each push, as JSON; the values are never shown."
    )
    tls_ca: File | None = Field(None, description="PEM CA that the receiver's certificate must be signed by.")
    tls_cert: File | None = Field(None, description="PEM client certificate for mTLS, together with tls_key.")
    tls_key: File | None = Field(None, description="PEM private key of tls_cert.")
    insecure: bool | None = Field(
        None, description="gRPC without TLS. By default the endpoint's scheme decides; without a scheme there is TLS."
    )
    compression: Literal["none", "gzip"] = Field("gzip", description="Compression of a push.")
    timeout: Number = Field(10.0, ge=0.1, le=300, description="Longest duration of a push, in seconds.")
    interval: Number = Field(15.0, ge=0.1, le=3600, description="Seconds between two pushes.")
    shutdown_timeout: Number = Field(
        2.0,
        ge=0,
        le=60,
        description="Seconds by which the last push may delay the end of the process; 0 for no last push.",
    )
    temporality: Literal["cumulative", "delta", "lowmemory"] = Field(
        "cumulative",
        description="cumulative: counters and histograms are pushed as totals. delta, lowmemory: as differences.",
    )
    histograms: Literal["explicit", "exponential"] = Field(
        "explicit",
        description="explicit: histograms have the buckets of their family. exponential: they have base-2 exponential buckets.",
    )
    include_native: bool = Field(False, description="Push vLLM's own metrics too, and everything else in its registry.")
    service_name: str | None = Field(
        None, min_length=1, description="service.name of the resource. If neither this nor the attributes set it: vllm."
    )
    resource: dict[str, str] = Field(default_factory=dict, description="Further attributes of the resource, as JSON.")

    @field_validator("headers")
    @classmethod
    def _sendable(cls, headers: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for name, value in headers.items():
            if not HEADER_NAME.fullmatch(name):  # the name is not shown: in `authorization:TOKEN=` it holds the secret
                raise ValueError("the name of a header may hold letters, digits, '-', '_' and '.' only")
            if not (name + value.get_secret_value()).isascii() or not (name + value.get_secret_value()).isprintable():
                raise ValueError(f"the header {name!r} contains characters that are not printable ASCII")
        return headers

    @model_validator(mode="after")
    def _consistent(self) -> "OtlpSettings":
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key must be set together")
        for name, value in self.headers.items() if self.protocol == "grpc" else ():
            if name.lower().endswith(BINARY):
                binary(name, value.get_secret_value())
        try:
            split(self.endpoint or "")
        except ValueError as error:
            raise ValueError(f"endpoint={shown_url(self.endpoint or '')!r} is not a valid address") from error
        if self.protocol == "http/protobuf" and self.endpoint and not self.endpoint.startswith(("http://", "https://")):
            raise ValueError(
                f"endpoint={shown_url(self.endpoint)!r} must begin with http:// or https:// for http/protobuf"
            )
        return self


class WireSettings(Section):
    """The connection to a collector in another process: one of several API servers, or a sidecar."""

    sidecar: Socket | None = Field(
        None,
        description="Unix socket of a `vllm-vitals sidecar`. Steps are sent there, and this process exports nothing.",
    )
    socket: Socket | None = Field(
        None,
        description="Unix socket for the API servers of one deployment. By default its name comes from the process that "
        "started them, in a directory below TMPDIR, XDG_RUNTIME_DIR or /tmp.",
    )
    interval: Number = Field(0.25, ge=0.01, le=5, description="Seconds between batches of steps.")
    buffer: Whole = Field(
        64 * 2**20,
        ge=2**20,
        le=2**34,
        description="Largest number of bytes that may wait for the collector. Beyond it, the oldest steps are "
        "dropped and counted.",
    )


class NativeSettings(Section):
    """How to fetch vLLM's own metrics, for a sidecar or for a process without their registry."""

    url: str | None = Field(
        None,
        pattern=r"^https?://",
        description="URL of vLLM's /metrics, as the source for include_native. A sidecar shows these numbers under our names, "
        "for a vLLM in which no plugin can load.",
    )
    interval: Number = Field(5.0, ge=0.5, le=300, description="Seconds between fetches by a sidecar.")
    timeout: Number = Field(5.0, ge=0.1, le=60, description="Longest duration of a fetch, in seconds.")
    tls_ca: File | None = Field(
        None,
        description="PEM CA that must have signed the certificate of the URL's server; by default the system's CAs. All "
        "three files are reloaded when they change.",
    )
    tls_cert: File | None = Field(None, description="PEM client certificate for mTLS, together with tls_key.")
    tls_key: File | None = Field(None, description="PEM private key of tls_cert.")

    @field_validator("url")
    @classmethod
    def _whole(cls, url: str | None) -> str | None:
        try:
            fit = url is None or bool(split(url).hostname and split(url).port != 0)
        except ValueError:
            fit = False
        if not fit:
            raise ValueError("must name a host, and a port from 1 to 65535 if any; a password in it is percent-encoded")
        return url

    @model_validator(mode="after")
    def _consistent(self) -> "NativeSettings":
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key must be set together")
        return self


class GpuSettings(Section):
    """The GPUs of the engines."""

    enabled: bool = Field(True, description="Sample the GPUs.")
    interval: Number = Field(1.0, ge=0.1, le=60, description="Seconds between samples.")
    devices: str | None = Field(
        None,
        max_length=4096,
        description="GPUs to sample, written as in CUDA_VISIBLE_DEVICES, which is the default; or all, for every GPU "
        "that the driver shows.",
    )


class PriceSettings(Section):
    """Prices of GPUs."""

    per_gpu_hour: Price | None = Field(None, description="Price of one GPU per hour. If unset, no cost metrics.")
    currency: str = Field(
        "USD", pattern=r"^[A-Z]{3}$", description="Currency of the price, as a code of three letters."
    )


class PerfSettings(Section):
    """Peak performance of a GPU, if its name is not known."""

    peak_flops: Peak | None = Field(
        None,
        description="Peak floating-point operations per second of one GPU, such as 989e12: dense, at the precision "
        "of the model.",
    )
    peak_bandwidth: Peak | None = Field(
        None, description="Peak bytes per second between one GPU and its memory, such as 3.35e12."
    )


class GenAISettings(Section):
    """The `gen_ai.server.*` metrics of the OpenTelemetry conventions."""

    enabled: bool = Field(True, description="Export the gen_ai.server.* metrics.")
    operation_name: str = Field(
        "chat",
        min_length=1,
        max_length=64,
        description="Value of gen_ai.operation.name. vLLM's stats do not distinguish chat from text_completion. If unset, "
        "pooling models have embeddings.",
    )
    provider_name: str = Field("vllm", min_length=1, max_length=64, description="Value of gen_ai.provider.name.")


class Slo(Section):
    """A service level objective: its requests, their limits, and the share of them that must be good."""

    name: str = Field(pattern=r"^[a-z0-9_-]{1,32}$", description="Value of the label `slo`.")
    target: Share = Field(description="Share of the requests that must be good.")
    ttft: Duration | None = Field(None, description="Longest time to first token.")
    tpot: Duration | None = Field(None, description="Longest mean time per output token after the first.")
    e2e: Duration | None = Field(None, description="Longest duration of the request.")
    prompt_tokens: TokenRange | None = Field(
        None, description="Smallest and largest number of prompt tokens; null for no limit."
    )
    output_tokens: TokenRange | None = Field(
        None, description="Smallest and largest number of generated tokens; null for no limit."
    )
    finish_reasons: list[FinishReason] | None = Field(
        None, min_length=1, description="Finish reasons of the requests; by default all."
    )
    errors: Literal["bad", "ignore"] = Field("bad", description="How failed requests count.")
    aborts: Literal["ignore", "bad", "judge"] = Field("ignore", description="How aborted requests count.")

    @model_validator(mode="after")
    def _limits(self) -> "Slo":
        if all(getattr(self, objective) is None for objective in OBJECTIVES):
            raise ValueError(f"the SLO {self.name!r} must limit at least one of {', '.join(OBJECTIVES)}")
        return self


class Settings(Section):
    """All settings of the plugin."""

    strict: bool = Field(False, description="Make vLLM fail to start if a setting is wrong.")
    queue_size: Whole = Field(
        2048, ge=16, le=1_000_000, description="Largest number of steps in the queue between vLLM and our thread."
    )
    drain_interval: Number = Field(
        1.0, ge=0.001, le=10, description="Seconds between drains of that queue; a scrape or push drains it too."
    )
    stale_after: Number = Field(
        60.0,
        ge=0,
        le=86400,
        description="Seconds after which the gauges of an engine disappear, if it stops reporting in the middle of its "
        "work; 0 keeps them.",
    )
    exemplars: bool = Field(
        False,
        description="Add the request id to the latest value of each bucket of the per-request latency histograms, in "
        "OpenMetrics and OTLP. Needs vLLM 0.20.0 or newer; older ones do not report request ids.",
    )
    buckets: dict[str, list[Number]] = Field(
        default_factory=dict,
        description="Bucket bounds by family, as JSON. They take precedence over vLLM's --custom-histogram-buckets and "
        "the defaults.",
    )
    slos: list[Slo] = Field(
        default_factory=list,
        description=f"Service level objectives, at most {MAX_SLOS}: each with name, target and at least "
        "one of ttft, tpot and e2e. docs/slo.md explains them.",
    )
    prometheus: PrometheusSettings = PrometheusSettings()
    otlp: OtlpSettings = OtlpSettings()
    wire: WireSettings = WireSettings()
    native: NativeSettings = NativeSettings()
    gpu: GpuSettings = GpuSettings()
    price: PriceSettings = PriceSettings()
    perf: PerfSettings = PerfSettings()
    gen_ai: GenAISettings = GenAISettings()

    @field_validator("buckets")
    @classmethod
    def _ascending(cls, families: dict[str, list[float]]) -> dict[str, list[float]]:
        return {family: list(check(family, bounds)) for family, bounds in families.items()}

    @field_validator("slos")
    @classmethod
    def _few_and_distinct(cls, slos: list[Slo]) -> list[Slo]:
        if len(slos) > MAX_SLOS:
            raise ValueError(f"there may be at most {MAX_SLOS} SLOs, not {len(slos)}")
        names = [slo.name for slo in slos]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"each SLO needs its own name; more than one has {', '.join(map(repr, twice))}")
        return slos
