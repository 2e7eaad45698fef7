"""vLLM's own metrics as the releases declare them, made with the real `prometheus_client`."""

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import Metric
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
ENGINE = ("model_name", "engine")
NEVER = (99,)


class Declared(NamedTuple):
    """A metric of vLLM's, from its first release to before the one that lacks it."""

    kind: type
    labels: tuple[str, ...] = ENGINE
    since: tuple[int, ...] = (0, 11, 0)
    until: tuple[int, ...] = NEVER


ALWAYS_COUNTED = (
    "prompt_tokens", "generation_tokens", "num_preemptions", "prefix_cache_queries", "prefix_cache_hits",
    "spec_decode_num_drafts", "spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens",
)  # fmt: skip
SINCE_0_11_1 = (
    "external_prefix_cache_queries", "external_prefix_cache_hits", "mm_cache_queries", "mm_cache_hits",
    "corrupted_requests",
)  # fmt: skip
SINCE_0_17 = (
    "estimated_flops_per_gpu_total", "estimated_read_bytes_per_gpu_total", "estimated_write_bytes_per_gpu_total",
)  # fmt: skip
ALWAYS_OBSERVED = (
    "e2e_request_latency_seconds", "inter_token_latency_seconds", "iteration_tokens_total",
    "request_decode_time_seconds", "request_generation_tokens", "request_inference_time_seconds",
    "request_max_num_generation_tokens", "request_params_max_tokens", "request_params_n",
    "request_prefill_time_seconds", "request_prompt_tokens", "request_queue_time_seconds",
    "request_time_per_output_token_seconds", "time_to_first_token_seconds",
)  # fmt: skip
RESIDENCY = ("kv_block_idle_before_evict_seconds", "kv_block_lifetime_seconds", "kv_block_reuse_gap_seconds")
CONFIG = ("block_size", "cache_dtype", "engine", "num_gpu_blocks")
ADAPTERS = ("max_lora", "waiting_lora_adapters", "running_lora_adapters")

DECLARED: dict[str, Declared] = {
    **{name: Declared(Gauge) for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")},
    **{name: Declared(Counter) for name in ALWAYS_COUNTED},
    **{name: Declared(Counter, since=(0, 11, 1)) for name in SINCE_0_11_1},
    **{name: Declared(Counter, since=(0, 17)) for name in SINCE_0_17},
    **{name: Declared(Histogram) for name in ALWAYS_OBSERVED},
    **{name: Declared(Histogram, since=(0, 12)) for name in RESIDENCY},
    "gpu_cache_usage_perc": Declared(Gauge, until=(0, 12)),
    "gpu_prefix_cache_queries": Declared(Counter, until=(0, 12)),
    "gpu_prefix_cache_hits": Declared(Counter, until=(0, 12)),
    "time_per_output_token_seconds": Declared(Histogram, until=(0, 15)),
    "prompt_tokens_recomputed": Declared(Counter, since=(0, 16), until=(0, 20)),
    "prompt_tokens_cached": Declared(Counter, since=(0, 16)),
    "prompt_tokens_by_source": Declared(Counter, (*ENGINE, "source"), (0, 16)),
    "prompt_tokens_cached_by_source": Declared(Counter, (*ENGINE, "source"), (0, 32)),
    "request_success": Declared(Counter, (*ENGINE, "finished_reason")),
    "spec_decode_num_accepted_tokens_per_pos": Declared(Counter, (*ENGINE, "position")),
    "admission_rejections": Declared(Counter, ("model_name", "reason"), (0, 32)),
    "watermark_requests": Declared(Counter, (*ENGINE, "status"), (0, 32)),
    "num_requests_waiting_by_reason": Declared(Gauge, (*ENGINE, "reason"), (0, 20)),
    "num_requests_kv_fetch_by_stage": Declared(Gauge, (*ENGINE, "stage"), (0, 32)),
    "engine_sleep_state": Declared(Gauge, (*ENGINE, "sleep_state"), (0, 11, 1)),
    "request_prefill_kv_computed_tokens": Declared(Histogram, since=(0, 13)),
    "request_num_preemptions": Declared(Histogram, since=(0, 30)),
    "cache_config_info": Declared(Gauge, CONFIG),
    "lora_requests_info": Declared(Gauge, ADAPTERS),
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
            name: self._make(f"vllm:{name}", declared, buckets)
            for name, declared in DECLARED.items()
            if declared.since <= release < declared.until
        }

    def _make(self, name: str, declared: Declared, buckets: tuple[float, ...]) -> Any:
        bounded = {"buckets": buckets} if declared.kind is Histogram else {}
        return declared.kind(name, f"What {name} is.", declared.labels, registry=self.registry, **bounded)

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
