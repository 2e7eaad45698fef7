"""Every setting, its default and what it allows, declared once.

`vllm_vitals.config.load` fills them in from the environment and a file.
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

HEADER = re.compile(r"[A-Za-z0-9._-]+")
"""What gRPC allows of a header's name; HTTP allows a little more, which nobody uses."""


def split(address: str) -> SplitResult:
    """Return the parts of a URL, or of a bare host and port; raise `ValueError` for a bracket that is not closed."""
    return urlsplit(address if "://" in address else f"//{address}")


class PrometheusSettings(Section):
    """The scrape endpoint."""

    enabled: bool = Field(True, description="Serve a scrape endpoint.")
    host: str = Field("localhost", min_length=1, description="Address to listen on; 0.0.0.0 or :: for all.")
    port: Whole = Field(9464, ge=0, le=65535, description="Port to listen on; 0 lets the system choose one.")
    tls_cert: File | None = Field(
        None, description="PEM certificate (chain); serves HTTPS together with tls_key. All three files are read anew "
        "when they change."
    )  # fmt: skip
    tls_key: File | None = Field(None, description="PEM private key of tls_cert.")
    tls_client_ca: File | None = Field(None, description="PEM CA that client certificates must be signed by (mTLS).")
    include_native: bool = Field(
        False, description="Serve vLLM's own metrics here too, from our thread, so that /metrics of the serving "
        "event loop need not be scraped."
    )  # fmt: skip
    join_native: bool = Field(
        False, description="Also appear on vLLM's own /metrics, which is rendered on the serving event loop; not "
        "with several API servers or a sidecar."
    )  # fmt: skip
    retry_interval: Number = Field(5.0, ge=0.1, le=3600, description="Seconds between tries to listen.")

    @field_validator("tls_key")
    @classmethod
    def _open(cls, path: Path | None) -> Path | None:
        try:
            content = b"" if path is None else read(path)
        except OSError as error:
            raise ValueError(f"must be a file that this process can read: {error}") from error
        if b"ENCRYPTED" in content:
            raise ValueError("must not be encrypted: there is no one to type its passphrase")
        return path

    @model_validator(mode="after")
    def _consistent(self) -> "PrometheusSettings":
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key must be set together")
        if self.tls_client_ca and not self.tls_cert:
            raise ValueError("tls_client_ca needs tls_cert and tls_key")
        if self.include_native and self.join_native:
            raise ValueError("include_native and join_native would show each metric twice: set one of them")
        return self


class OtlpSettings(Section):
    """The push over OTLP; on as soon as an endpoint is known."""

    enabled: bool = Field(True, description="Push once an endpoint is set.")
    endpoint: str | None = Field(
        None, min_length=1, description="URL of the receiver, such as http://collector:4318; for gRPC also host:port."
    )  # fmt: skip
    signal_path: bool | None = Field(
        None, description="Append /v1/metrics to the endpoint for HTTP; by default only where it has no path."
    )  # fmt: skip
    protocol: Literal["http/protobuf", "grpc"] = Field("http/protobuf", description="How to push.")
    headers: dict[str, SecretStr] = Field(
        default_factory=dict, description="Headers of each push, as JSON; the values are never shown."
    )  # fmt: skip
    tls_ca: File | None = Field(None, description="PEM CA that the receiver's certificate must be signed by.")
    tls_cert: File | None = Field(None, description="PEM client certificate for mTLS, together with tls_key.")
    tls_key: File | None = Field(None, description="PEM private key of tls_cert.")
    insecure: bool | None = Field(
        None, description="gRPC without TLS; by default what the endpoint's scheme says, and TLS without a scheme."
    )  # fmt: skip
    compression: Literal["none", "gzip"] = Field("gzip", description="How to compress a push.")
    timeout: Number = Field(10.0, ge=0.1, le=300, description="Seconds that a push may take.")
    interval: Number = Field(15.0, ge=0.1, le=3600, description="Seconds between two pushes.")
    shutdown_timeout: Number = Field(
        2.0, ge=0, le=60, description="Seconds that the last push may hold the end of the process; 0 for none."
    )  # fmt: skip
    temporality: Literal["cumulative", "delta", "lowmemory"] = Field(
        "cumulative", description="Whether counters and histograms are pushed as totals or as differences."
    )  # fmt: skip
    histograms: Literal["explicit", "exponential"] = Field(
        "explicit", description="Whether histograms have the buckets of their family or base-2 exponential ones."
    )  # fmt: skip
    include_native: bool = Field(
        False, description="Push vLLM's own metrics too, and whatever else is in its registry."
    )  # fmt: skip
    service_name: str | None = Field(
        None, min_length=1, description="service.name of the resource; vllm when its attributes name none either."
    )  # fmt: skip
    resource: dict[str, str] = Field(default_factory=dict, description="More attributes of the resource, as JSON.")

    @field_validator("headers")
    @classmethod
    def _sendable(cls, headers: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for name, value in headers.items():
            if not HEADER.fullmatch(name):  # and it is not shown: of `authorization:TOKEN=` it is the most
                raise ValueError("the name of a header may hold letters, digits, '-', '_' and '.' only")
            if not (name + value.get_secret_value()).isascii() or not (name + value.get_secret_value()).isprintable():
                raise ValueError(f"the header {name!r} holds something that is no printable ASCII")
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
            raise ValueError(f"endpoint={shown_url(self.endpoint or '')!r} is no address") from error
        if self.protocol == "http/protobuf" and self.endpoint and not self.endpoint.startswith(("http://", "https://")):
            raise ValueError(
                f"endpoint={shown_url(self.endpoint)!r} must begin with http:// or https:// for http/protobuf"
            )
        return self


class WireSettings(Section):
    """How serving processes reach a collector outside of them: one of several API servers, or a sidecar."""

    sidecar: Socket | None = Field(
        None, description="Unix socket of a `vllm-vitals sidecar`: steps go there, and nothing is exported from here."
    )  # fmt: skip
    socket: Socket | None = Field(
        None, description="Unix socket by which the API servers of one deployment meet; unset, they find each other "
        "by the process that started them, below TMPDIR, XDG_RUNTIME_DIR or /tmp."
    )  # fmt: skip
    interval: Number = Field(0.25, ge=0.01, le=5, description="Seconds between two batches of steps.")
    buffer: Whole = Field(
        64 * 2**20, ge=2**20, le=2**34, description="Bytes of steps that may wait for the collector; beyond, the "
        "oldest are dropped and counted."
    )  # fmt: skip


class NativeSettings(Section):
    """vLLM's own metrics, where they have to be fetched: this process has no registry of theirs, or is a sidecar."""

    url: str | None = Field(
        None, pattern=r"^https?://", description="vLLM's /metrics, when include_native shall take it from there. A "
        "sidecar shows the same numbers under our names: for a vLLM in which no plugin can load."
    )  # fmt: skip
    interval: Number = Field(5.0, ge=0.5, le=300, description="Seconds between two fetches of a sidecar.")
    timeout: Number = Field(5.0, ge=0.1, le=60, description="Seconds that a fetch may take.")
    tls_ca: File | None = Field(
        None,
        description="PEM CA that the certificate of the url's server must be signed by; unset, the system's. All three "
        "files are read anew when they change.",
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
    """The GPUs that the engines work on."""

    enabled: bool = Field(True, description="Sample the GPUs.")
    interval: Number = Field(1.0, ge=0.1, le=60, description="Seconds between two samples.")
    devices: str | None = Field(
        None, max_length=4096, description="Those that vLLM may use, written as in CUDA_VISIBLE_DEVICES, which counts by "
        "default; or all, to sample every one that the driver shows."
    )  # fmt: skip


class PriceSettings(Section):
    """What GPUs cost."""

    per_gpu_hour: Price | None = Field(
        None, description="Price of one GPU for an hour; unset, nothing is told in money."
    )  # fmt: skip
    currency: str = Field("USD", pattern=r"^[A-Z]{3}$", description="Its currency, by its code of three letters.")


class PerfSettings(Section):
    """What a GPU can do at most, where that is not known by its name."""

    peak_flops: Peak | None = Field(
        None, description="Floating-point operations per second of one GPU, such as 989e12: dense, and at "
        "the precision that the model is computed with."
    )  # fmt: skip
    peak_bandwidth: Peak | None = Field(
        None, description="Bytes per second between one GPU and its memory, such as 3.35e12."
    )  # fmt: skip


class GenAISettings(Section):
    """The `gen_ai.server.*` metrics of the OpenTelemetry conventions."""

    enabled: bool = Field(True, description="Keep the gen_ai.server.* metrics.")
    operation_name: str = Field(
        "chat", min_length=1, max_length=64,
        description="gen_ai.operation.name: vLLM's stats do not tell chat from text_completion. Unset, it is embeddings for "
        "a model that pools.",
    )  # fmt: skip
    provider_name: str = Field("vllm", min_length=1, max_length=64, description="gen_ai.provider.name.")


class Slo(Section):
    """A service level objective: which requests it is about, what they may take, and how many of them have to."""

    name: str = Field(pattern=r"^[a-z0-9_-]{1,32}$", description="What the label `slo` shows.")
    target: Share = Field(description="Share of the requests that shall be good.")
    ttft: Duration | None = Field(None, description="The longest time to first token.")
    tpot: Duration | None = Field(None, description="The longest mean time per output token after the first.")
    e2e: Duration | None = Field(None, description="The longest duration.")
    prompt_tokens: TokenRange | None = Field(None, description="Least and most prompt tokens, null for any.")
    output_tokens: TokenRange | None = Field(None, description="Least and most tokens generated, null for any.")
    finish_reasons: list[FinishReason] | None = Field(None, min_length=1, description="Why they ended; unset, any.")
    errors: Literal["bad", "ignore"] = Field("bad", description="What a request that failed counts as.")
    aborts: Literal["ignore", "bad", "judge"] = Field("ignore", description="What one that was cut off counts as.")

    @model_validator(mode="after")
    def _limits(self) -> "Slo":
        if all(getattr(self, objective) is None for objective in OBJECTIVES):
            raise ValueError(f"the SLO {self.name!r} must limit at least one of {', '.join(OBJECTIVES)}")
        return self


class Settings(Section):
    """All settings of the plugin."""

    strict: bool = Field(False, description="Let vLLM fail to start when a setting is wrong.")
    queue_size: Whole = Field(2048, ge=16, le=1_000_000, description="Maximum of steps that wait to be read.")
    drain_interval: Number = Field(
        1.0, ge=0.001, le=10, description="Seconds between two drains of that queue; a scrape or push drains it too."
    )  # fmt: skip
    stale_after: Number = Field(
        60.0, ge=0, le=86400, description="Seconds of silence in the middle of work after which an engine's gauges "
        "go away; 0 keeps them."
    )  # fmt: skip
    exemplars: bool = Field(
        False, description="Put the request id beside the latest value of each bucket of the per-request "
        "latency histograms, in OpenMetrics and OTLP. It takes vLLM 0.20.0 or newer, which tells request ids."
    )  # fmt: skip
    buckets: dict[str, list[Number]] = Field(
        default_factory=dict, description="Bucket bounds by family, as JSON; they win over vLLM's "
        "--custom-histogram-buckets and over the defaults."
    )  # fmt: skip
    slos: list[Slo] = Field(
        default_factory=list, description=f"Service level objectives, at most {MAX_SLOS}: name, target and at least one "
        "of ttft, tpot and e2e for each. docs/slo.md has the rest."
    )  # fmt: skip
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
            raise ValueError(f"each SLO needs a name of its own; more than one has {', '.join(map(repr, twice))}")
        return slos
