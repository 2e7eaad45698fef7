"""vLLM's own metrics as the releases declare them (`vllm_metrics.json`), made with the real `prometheus_client`."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import Metric
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
ENGINE = ("model_name", "engine")
KINDS = {"counter": Counter, "gauge": Gauge, "histogram": Histogram}
KNOWN: dict[str, Any] = json.loads(Path(__file__).with_name("vllm_metrics.json").read_text())

Release = tuple[int, ...]


def parsed(release: str) -> Release:
    return tuple(map(int, release.split(".")))


class Declared(NamedTuple):
    """A metric of vLLM's, and the first and last release that have it."""

    kind: type
    labels: tuple[str, ...]
    since: Release
    until: Release
    earlier: tuple[tuple[Release, tuple[str, ...]], ...] = ()
    """The last releases that have it with other labels, the oldest first, and these."""

    def exists(self, release: Release) -> bool:
        """Tell whether a release has it, which must be one that was read."""
        assert release in RELEASES
        return self.since <= release <= self.until

    def labels_of(self, release: Release) -> tuple[str, ...]:
        """Return the labels that it has in a release."""
        return next((labels for last, labels in self.earlier if release <= last), self.labels)


RELEASES: list[Release] = [parsed(release) for release in KNOWN["releases"]]
DECLARED: dict[str, Declared] = {
    name: Declared(
        KINDS[kind],
        tuple(labels),
        parsed(since),
        parsed(until),
        tuple((parsed(last), tuple(each)) for earlier in more for last, each in earlier.items()),
    )
    for name, (kind, since, until, labels, *more) in KNOWN["metrics"].items()
}


RUST = b"""\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="m",engine="0"} 2
# HELP vllm:prompt_tokens Number of prompt tokens.
# TYPE vllm:prompt_tokens counter
vllm:prompt_tokens_total{model_name="m",engine="0"} 34567503
# HELP vllm:time_to_first_token_seconds Histogram of time to first token in seconds.
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_sum{model_name="m",engine="0"} 3.25
vllm:time_to_first_token_seconds_count{model_name="m",engine="0"} 3
vllm:time_to_first_token_seconds_bucket{le="0.5",model_name="m",engine="0"} 1
vllm:time_to_first_token_seconds_bucket{le="2560.0",model_name="m",engine="0"} 3
vllm:time_to_first_token_seconds_bucket{le="+Inf",model_name="m",engine="0"} 3
# EOF
"""
"""As the Rust front end writes it: OpenMetrics whatever is asked for, a histogram's sum before its buckets."""


class Vllm:
    """The registry of a vLLM of some release, with the buckets that its metrics shall have."""

    def __init__(self, *release: int, buckets: tuple[float, ...] = (1.0, 2.0, 5.0)) -> None:
        self.registry = CollectorRegistry()
        self.metrics: dict[str, Any] = {
            name: self._make(f"vllm:{name}", declared.kind, declared.labels_of(release), buckets)
            for name, declared in DECLARED.items()
            if declared.exists(release)
        }

    def _make(self, name: str, kind: type, labels: tuple[str, ...], buckets: tuple[float, ...]) -> Any:
        bounded = {"buckets": buckets} if kind is Histogram else {}
        return kind(name, f"What {name} is.", labels, registry=self.registry, **bounded)

    def of(self, name: str, *own: str, engine: str = "0") -> Any:
        """Return the series of an engine."""
        return self.metrics[name].labels("m", engine, *own)

    def count(self, engine: str = "0", **values: float) -> None:
        """Add to counters."""
        for name, value in values.items():
            self.of(name, engine=engine).inc(value)

    def observe(self, name: str, *values: float, engine: str = "0") -> None:
        for value in values:
            self.of(name, engine=engine).observe(value)

    @property
    def families(self) -> list[Metric]:
        return list(self.registry.collect())


def text_page(registry: Any) -> bytes:
    return generate_latest(registry)


def openmetrics_page(registry: Any) -> bytes:
    """Return a page whose names are right, whichever client writes it."""
    return re.sub(rb"^vllm_", b"vllm:", _openmetrics(registry), flags=re.MULTILINE)


def broken_page(registry: Any) -> bytes:
    """Return the page that a client from 0.23 on writes: right names in the comments, wrong ones in the samples."""
    return re.sub(rb"^vllm:", b"vllm_", _openmetrics(registry), flags=re.MULTILINE)


def _openmetrics(registry: Any) -> bytes:
    page: bytes = generate_openmetrics(registry)  # type: ignore[no-untyped-call]
    return page


def plain(families: Iterable[Metric], *, units: bool = True) -> dict[str, Any]:
    """Return families in a form that can be compared; text does not tell units."""
    return {
        family.name: (
            family.type,
            family.documentation,
            family.unit if units else "",
            sorted((s.name, sorted(s.labels.items()), float(s.value)) for s in family.samples),
        )
        for family in families
    }
