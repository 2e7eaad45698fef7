"""The obvious OpenTelemetry logger: one instrument per metric, one SDK call per value."""

from typing import Any

from opentelemetry.metrics import Histogram
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    MetricExporter,
    MetricExportResult,
    MetricReader,
    PeriodicExportingMetricReader,
)

SECONDS = [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0]
TOKENS = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 4096.0]
LATENCIES = (
    "e2e_latency",
    "queued_time",
    "prefill_time",
    "inference_time",
    "decode_time",
    "mean_time_per_output_token",
)
SIZES = ("num_prompt_tokens", "num_generation_tokens", "max_tokens_param", "num_preemptions", "num_cached_tokens")


class NoOpExporter(MetricExporter):
    """Takes what it is given and does nothing with it."""

    def export(self, *_args: Any, **_kwargs: Any) -> MetricExportResult:
        """Report success at once."""
        return MetricExportResult.SUCCESS

    def force_flush(self, *_args: Any, **_kwargs: Any) -> bool:
        """Report success: nothing is ever held back."""
        return True

    def shutdown(self, *_args: Any, **_kwargs: Any) -> None:
        """Close nothing."""


class NaiveOtelLogger:
    """Records the values that vLLM's own Prometheus logger records."""

    def __init__(self, model_name: str, reader: MetricReader | None = None) -> None:
        """Make the instruments; without a reader they are read every 10 s for nobody."""
        reader = reader or PeriodicExportingMetricReader(NoOpExporter(), export_interval_millis=10_000)
        self._model_name = model_name
        self._meter = MeterProvider([reader]).get_meter("bench")
        self._gauges = {name: self._meter.create_gauge(name) for name in ("running", "waiting", "kv_cache_usage")}
        names = ("prefix_queries", "prefix_hits", "preempted", "prompt_tokens", "generation_tokens", "finished")
        self._counters = {name: self._meter.create_counter(name) for name in names}
        self._seconds = {name: self._histogram(name, SECONDS) for name in (*LATENCIES, "ttft", "itl")}
        self._sizes = {name: self._histogram(name, TOKENS) for name in (*SIZES, "step_tokens", "n")}

    def _histogram(self, name: str, bounds: list[float]) -> Histogram:
        """Make a histogram with explicit buckets."""
        return self._meter.create_histogram(name, explicit_bucket_boundaries_advisory=bounds)

    def record(self, scheduler: Any, iteration: Any, mm_cache_stats: Any, engine_idx: int) -> None:  # noqa: ARG002
        """Write every value of the step."""
        labels = {"model_name": self._model_name, "engine": str(engine_idx)}
        self._scheduler(scheduler, labels)
        self._counters["preempted"].add(iteration.num_preempted_reqs, labels)
        self._counters["prompt_tokens"].add(iteration.num_prompt_tokens, labels)
        self._counters["generation_tokens"].add(iteration.num_generation_tokens, labels)
        self._sizes["step_tokens"].record(iteration.num_prompt_tokens + iteration.num_generation_tokens, labels)
        for n in iteration.n_params_iter:
            self._sizes["n"].record(n, labels)
        for ttft in iteration.time_to_first_tokens_iter:
            self._seconds["ttft"].record(ttft, labels)
        for itl in iteration.inter_token_latencies_iter:
            self._seconds["itl"].record(itl, labels)
        for request in iteration.finished_requests:
            self._finished(request, labels)

    def _scheduler(self, stats: Any, labels: dict[str, str]) -> None:
        """Write the state of the queue and the caches."""
        self._gauges["running"].set(stats.num_running_reqs, labels)
        self._gauges["waiting"].set(stats.num_waiting_reqs, labels)
        self._gauges["kv_cache_usage"].set(stats.kv_cache_usage, labels)
        self._counters["prefix_queries"].add(stats.prefix_cache_stats.queries, labels)
        self._counters["prefix_hits"].add(stats.prefix_cache_stats.hits, labels)

    def _finished(self, request: Any, labels: dict[str, str]) -> None:
        """Write one request that ended."""
        self._counters["finished"].add(1, {**labels, "finish_reason": str(request.finish_reason)})
        for name in LATENCIES:
            self._seconds[name].record(getattr(request, name), labels)
        for name in SIZES:
            self._sizes[name].record(getattr(request, name), labels)
