"""vLLM's per-step stats to Steps, for every release from 0.11.1.

The objects are no stable interface: a field that a release lacks reads as `None` or 0, one that is new is
ignored, one of an unexpected type is left out and complained of. Nothing here imports vLLM.
"""

from array import array
from enum import Enum
from typing import Any

from vllm_vitals.step import CLOCK_SLACK, CacheUse, Evictions, Finished, Speculation, Step
from vllm_vitals.vllm.fields import Complain, Fields, Table, text

REQUEST_NUMBERS = (
    "e2e_latency", "queued_time", "prefill_time", "decode_time", "inference_time", "mean_time_per_output_token",
)  # fmt: skip
REQUEST_COUNTS = (
    "num_prompt_tokens", "num_generation_tokens", "num_cached_tokens", "max_tokens_param", "num_preemptions",
)  # fmt: skip
QUEUES = ("num_running_reqs", "num_waiting_reqs", "num_skipped_waiting_reqs")
OUTPUTS = ("num_generation_tokens", "num_preempted_reqs", "num_corrupted_reqs")
FETCH_STAGES = "num_kv_fetch_reqs_by_stage"


class Reader:
    """Reads the stats that one `AsyncLLM` hands to its loggers."""

    def __init__(self, model: str, complain: Complain, *, details: bool = False, pooling: bool = False) -> None:
        """`details`: vLLM reports iteration details. `pooling`: requests end without a token by design."""
        self._model = model
        self._fields = Fields(complain)
        self._complain = complain
        self._queues = Table(self._fields, ("kv_cache_usage",), QUEUES)
        self._outputs = Table(self._fields, (), OUTPUTS)
        self._request = Table(self._fields, REQUEST_NUMBERS, REQUEST_COUNTS, ("finish_reason", "request_id"))
        self._details = details
        self._pooling = pooling

    def step(
        self, scheduler: Any, iteration: Any, multimodal: Any, engine: str, *, time: float, clock: float, age: float
    ) -> Step:
        """Return the Step of one `record()` call; any of the stats may be `None`."""
        step = Step(self._model, engine, time, clock, age)
        if scheduler is not None:
            self._read_scheduler(step, scheduler)
        if iteration is not None:
            self._read_iteration(step, iteration)
        if multimodal is not None:
            step.multimodal_cache = self._cache(multimodal)
        return step

    def _read_scheduler(self, step: Step, stats: Any) -> None:
        fields = self._fields
        step.kv_cache_usage, running, waiting, deferred = self._queues.read(stats)
        step.running, step.waiting, step.deferred = running or 0, waiting or 0, deferred or 0
        step.prefix_cache = self._cache(fields.any(stats, "prefix_cache_stats"))
        self._read_external(step, fields.any(stats, "connector_prefix_cache_stats"))
        if step.prefix_cache and step.prefix_cache.hits:
            device = step.prefix_cache.hits + step.cached_by_source.get("device", 0)
            step.cached_by_source = step.cached_by_source | {"device": device}
        step.kv_fetch = fields.counts(stats, FETCH_STAGES)
        step.lora_running = fields.counts(stats, "running_lora_adapters")
        step.lora_waiting = fields.counts(stats, "waiting_lora_adapters")
        if (speculation := fields.any(stats, "spec_decoding_stats")) is not None:
            step.speculation = self._speculation(speculation)
        events = fields.any(stats, "kv_cache_eviction_events")
        if not fields.is_empty(events):
            step.evictions = self._evictions(events)
        if (graph := fields.any(stats, "cudagraph_stats")) is not None:
            self._read_graph(step, graph)
        if (perf := fields.any(stats, "perf_stats")) is not None:
            step.flops = fields.count(perf, "num_flops_per_gpu")
            step.memory_traffic = {
                "read": fields.count(perf, "num_read_bytes_per_gpu") or 0,
                "write": fields.count(perf, "num_write_bytes_per_gpu") or 0,
            }
        if (details := fields.any(stats, "iteration_details")) is not None:
            self._read_details(step, details)
        elif self._details and not hasattr(stats, "iteration_details"):
            self._details = False  # before 0.26 the option only logs

    def _cache(self, stats: Any) -> CacheUse | None:
        if stats is None:
            return None
        queries = self._fields.count(stats, "queries") or 0
        hits = self._fields.count(stats, "hits") or 0
        if hits > queries:
            self._complain(f"{type(stats).__name__}.hits", hits, f"at most its queries ({queries})")
            hits = queries
        return CacheUse(queries, hits)

    def _read_external(self, step: Step, stats: Any) -> None:
        step.external_prefix_cache = self._cache(stats)
        if stats is not None:
            step.cached_by_source = self._fields.counts(stats, "hits_by_source")
            if not step.cached_by_source and step.external_prefix_cache and step.external_prefix_cache.hits:
                step.cached_by_source = {"external_unspecified": step.external_prefix_cache.hits}

    def _speculation(self, stats: Any) -> Speculation:
        fields = self._fields
        by_position = fields.numbers(stats, "num_accepted_tokens_per_pos")
        return Speculation(
            fields.count(stats, "num_drafts") or 0,
            fields.count(stats, "num_draft_tokens") or 0,
            tuple(int(n) for n in by_position if 0 <= n < 2**53),
        )

    def _evictions(self, events: Any) -> Evictions:
        fields = self._fields
        read = Evictions()
        try:
            for event in events:
                for name, into in (("lifetime_seconds", read.lifetimes), ("idle_seconds", read.idle_times)):
                    if (seconds := fields.number(event, name)) is not None:
                        into.append(seconds)
                read.reuse_gaps.extend(fields.numbers(event, "reuse_gaps_seconds"))
        except Exception as error:  # noqa: BLE001 - not iterable, or its iterator raised
            self._complain("SchedulerStats.kv_cache_eviction_events", error, "a list of events")
        return read

    def _read_graph(self, step: Step, graph: Any) -> None:
        padded = self._fields.count(graph, "num_padded_tokens")
        unpadded = self._fields.count(graph, "num_unpadded_tokens")
        step.graph_tokens = {"padded": padded or 0, "unpadded": unpadded or 0}

    def _read_details(self, step: Step, details: Any) -> None:
        fields = self._fields
        if fields.any(details, "is_dummy") is True:
            return
        elapsed = fields.number(details, "elapsed_ms")
        step.duration = None if elapsed is None else elapsed / 1000
        step.scheduled_tokens = {
            "prefill": fields.count(details, "num_ctx_tokens") or 0,
            "decode": fields.count(details, "num_generation_tokens") or 0,
        }

    def _read_iteration(self, step: Step, stats: Any) -> None:
        fields = self._fields
        step.iterated = True
        generated, preempted, corrupted = self._outputs.read(stats)
        step.generation_tokens, step.preempted, step.corrupted = generated or 0, preempted or 0, corrupted or 0
        self._read_prompt(step, stats)
        if not self._details:
            step.scheduled_tokens = {"prefill": step.computed_tokens, "decode": step.generation_tokens}
        step.watermarks = self._watermarks(stats)
        step.inter_token_latencies = fields.numbers(stats, "inter_token_latencies_iter")
        step.first_token_latencies = fields.numbers(stats, "time_to_first_tokens_iter")
        step.sequences_asked = fields.numbers(stats, "n_params_iter")
        step.longest_outputs = fields.numbers(stats, "max_num_generation_tokens_iter")
        finished = fields.any(stats, "finished_requests")
        if not fields.is_empty(finished):
            self._read_finished(step, finished)

    def _read_prompt(self, step: Step, stats: Any) -> None:
        fields = self._fields
        sources = fields.any(stats, "prompt_token_stats")
        if sources is None:  # before 0.16.0, which does not tell cached tokens apart
            tokens = fields.count(stats, "num_prompt_tokens") or 0
            step.prompt_tokens = {"unknown": tokens} if tokens else {}
            step.computed_tokens = tokens
            return
        computed = fields.count(sources, "computed") or 0
        # 0.16 to 0.19 count a token that is cached but computed again under both.
        twice = fields.count(sources, "recomputed_tokens") or 0
        read = {
            "local_compute": computed,
            "local_cache_hit": (fields.count(sources, "local_cache_hit") or 0) - twice,
            "external_kv_transfer": fields.count(sources, "external_kv_transfer") or 0,
        }
        step.prompt_tokens = {source: tokens for source, tokens in read.items() if tokens}
        step.computed_tokens = max(computed, 0)

    def _watermarks(self, stats: Any) -> dict[str, int]:
        names = {"watermarked": "num_watermarked_reqs", "skipped": "num_watermark_skipped_reqs",
                 "not_watermarked": "num_not_watermarked_reqs"}  # fmt: skip
        read = {status: self._fields.count(stats, name) for status, name in names.items()}
        return {status: count for status, count in read.items() if count}

    def _read_finished(self, step: Step, finished: Any) -> None:
        try:
            requests = [self._finished(request, step.time) for request in finished]
        except Exception as error:  # noqa: BLE001 - not iterable, or its iterator raised
            self._complain("IterationStats.finished_requests", error, "a list of finished requests")
            return
        step.finished = requests
        for request in requests:
            if request.output_tokens == 0 and not self._pooling:
                _forget_tokenless(request, step.first_token_latencies)

    def _finished(self, stats: Any, time: float) -> Finished:
        read = self._request.read(stats)
        duration, queue, prefill, decode, inference, per_token, *counts, reason, request_id = read
        given, made, cached, asked, preempted = counts
        if inference is not None and duration is not None and inference > duration + CLOCK_SLACK:
            queue = None  # the engine did not stamp this request: its milestones are all 0, the boot of the host
        if cached is not None and cached < 0:
            cached = 0  # it was never scheduled
        if made is None or made < 2:  # noqa: PLR2004 - no time between tokens
            per_token = None
        return Finished(
            finish_reason(reason), time, duration, queue, prefill, decode, inference, per_token, given, made, cached, asked or None, preempted,
            request_id if isinstance(request_id, str) else None,
        )  # fmt: skip


def _forget_tokenless(request: Finished, first_tokens: "array[float]") -> None:
    """Drop the latencies that vLLM reports of a request that was cut off before its first token.

    Its first-token time is its duration, the very same number; its prefill and inference times run from a
    milestone it never reached, that is from the boot of the host.
    """
    if request.duration is not None and request.duration in first_tokens:
        first_tokens.remove(request.duration)
    request.prefill = request.decode = request.inference = None
    if request.queue is not None and request.duration is not None and not 0 <= request.queue <= request.duration:
        request.queue = None


def finish_reason(value: Any) -> str:
    """Return a finish reason's label: an enum member's name, whatever members a release has."""
    if isinstance(value, Enum):
        return value.name.lower()
    return text(value) if isinstance(value, str) else "unknown"
