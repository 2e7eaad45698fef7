"""vLLM's per-step stats to Steps, for every release from 0.11.1.

The objects are no stable interface: a field that a release lacks reads as `None` or 0, one that is new is
ignored, one of an unexpected type is left out and complained of. Nothing here imports vLLM.
"""

import logging
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from vllm_vitals._util.log import log_once
from vllm_vitals._util.pacing import checkpoint
from vllm_vitals.catalog.cache import MULTIMODAL_HITS, PREFIX_HITS
from vllm_vitals.catalog.metric import Metric
from vllm_vitals.ingest.step_queue import Call
from vllm_vitals.records.step import OTHER, CacheUse, Evictions, Speculation, Step
from vllm_vitals.vllm.connectors import Connectors
from vllm_vitals.vllm.fields import MOST_INT, Complain, Fields, Table
from vllm_vitals.vllm.finished import FinishedReader

QUEUES = ("num_running_reqs", "num_waiting_reqs", "num_skipped_waiting_reqs")
OFTEN = ("prefix_cache_stats", "connector_prefix_cache_stats")
"""What else most schedulers report."""
SELDOM = (
    "num_kv_fetch_reqs_by_stage", "running_lora_adapters", "waiting_lora_adapters", "spec_decoding_stats",
    "kv_cache_eviction_events", "cudagraph_stats", "perf_stats", "iteration_details", "kv_connector_stats",
)  # fmt: skip
"""What only some schedulers report."""
LOOKUPS = ("queries", "hits", "preempted_queries", "preempted_hits", "preempted_requests")
OUTPUTS = ("num_generation_tokens", "num_preempted_reqs", "num_corrupted_reqs")
WATERMARKS = {
    "num_watermarked_reqs": "watermarked", "num_watermark_skipped_reqs": "skipped",
    "num_not_watermarked_reqs": "not_watermarked",
}  # fmt: skip
LATENCIES = "inter_token_latencies_iter"
LISTS = {
    LATENCIES: "inter_token_latencies", "time_to_first_tokens_iter": "first_token_latencies",
    "n_params_iter": "sequences_asked", "max_num_generation_tokens_iter": "longest_outputs",
}  # fmt: skip
# 0.16 to 0.19 count a token that is cached but computed again both as computed and as a hit.
PROMPT = ("computed", "local_cache_hit", "external_kv_transfer", "recomputed_tokens")


Item = TypeVar("Item")
CLOCK_JITTER = 0.01
"""Seconds by which the host's clock may be steered back while a step is processed."""
CLOCK_SET = 0.25
"""Seconds between the host's clock and the monotonic one from which it was set; they are not read at one moment."""
MOST_POSITIONS = 1024
"""Tokens of a draft at most; beyond some dozens none are drafted."""
MOST_ENGINES = 4096
"""The engine indexes below it are believed."""


class Reader:
    """Reads the stats that one `AsyncLLM` hands to its loggers."""

    def __init__(
        self,
        model: str,
        complain: Complain,
        *,
        born: float = 0.0,
        details: bool = False,
        pooling: bool = False,
        connector: str = "",
    ) -> None:
        """`born`: monotonic seconds when this process began.

        `details`: vLLM reports iteration details. `pooling`: requests end without a token by design. `connector`:
        class of the KV connector, if there is one.
        """
        self._model = model
        self._born = born
        self._fields = Fields(complain)
        self._complain = complain
        self._schedulers = Table(self._fields, ("kv_cache_usage",), QUEUES, (*OFTEN, *SELDOM))
        self._lookups = Table(self._fields, counts=LOOKUPS)
        others = (*LISTS, "prompt_token_stats", "finished_requests")
        self._outputs = Table(self._fields, ("iteration_timestamp",), (*OUTPUTS, *WATERMARKS), others)
        self._prompts = Table(self._fields, counts=PROMPT)
        self._finished = FinishedReader(self._fields, pooling=pooling)
        self._details = details
        self._connectors = Connectors(connector, self._fields)
        self._epoch: float | None = None
        """That of the latest read."""
        self._steady = True
        """Whether it is still the one of the read before."""

    def read(self, calls: list[Call], epoch: float) -> list[Step]:
        """Return the Steps of calls of `record()`; any of the stats may be `None`. Together they cost less.

        `calls` is emptied: vLLM's objects are let go of one by one, as freeing a million numbers at once takes long.
        `epoch`: Unix seconds when the monotonic clock was 0.
        """
        clocks, schedulers, iterations, multimodals, engines = map(list, zip(*calls, strict=True))
        calls.clear()
        self._steady = self._epoch is None or abs(epoch - self._epoch) < CLOCK_SET
        self._epoch = epoch
        steps = [
            Step(self._model, _engine(engine), epoch + clock, clock, clock - self._born)
            for clock, engine in zip(clocks, engines, strict=True)
        ]
        checkpoint()
        self._read_schedulers(steps, schedulers)
        self._read_iterations(steps, iterations)
        for step, multimodal in zip(steps, multimodals, strict=True):
            if multimodal is not None:
                (step.multimodal_cache,) = self._caches([step], [multimodal], MULTIMODAL_HITS)
        return steps

    def _read_schedulers(self, steps: Sequence[Step], stats: list[Any]) -> None:
        steps, stats = _given(steps, stats)
        if not steps:
            return
        rows = self._schedulers.named(stats)
        checkpoint()
        cached, prefix = _given(steps, [row.prefix_cache_stats for row in rows])
        for step, use in zip(cached, self._caches(cached, prefix, PREFIX_HITS), strict=True):
            step.prefix_cache = use
        checkpoint()
        for step, row in zip(steps, rows, strict=True):
            self._read_scheduler(step, row)
            checkpoint()
        if self._details and not hasattr(stats[-1], "iteration_details"):
            self._details = False  # before 0.26 the option only logs

    def _read_scheduler(self, step: Step, row: Any) -> None:
        step.kv_cache_usage = row.kv_cache_usage
        step.running = row.num_running_reqs or 0
        step.waiting = row.num_waiting_reqs or 0
        step.deferred = row.num_skipped_waiting_reqs or 0
        if row.connector_prefix_cache_stats is not None:
            self._read_external(step, row.connector_prefix_cache_stats)
        if step.prefix_cache and step.prefix_cache.hits:
            others = step.cached_by_source or {}
            step.cached_by_source = others | {"device": step.prefix_cache.hits + others.get("device", 0)}
        if _says_anything(row[-len(SELDOM) :]):
            self._read_seldom(step, row)

    def _read_seldom(self, step: Step, row: Any) -> None:
        fields = self._fields
        step.kv_fetch = (
            fields.mapping(row.num_kv_fetch_reqs_by_stage, "SchedulerStats.num_kv_fetch_reqs_by_stage") or None
        )
        step.lora_running = fields.mapping(row.running_lora_adapters, "SchedulerStats.running_lora_adapters") or None
        step.lora_waiting = fields.mapping(row.waiting_lora_adapters, "SchedulerStats.waiting_lora_adapters") or None
        if row.spec_decoding_stats is not None:
            step.speculation = self._speculation(row.spec_decoding_stats)
        if not fields.is_empty(row.kv_cache_eviction_events):
            step.evictions = self._evictions(row.kv_cache_eviction_events)
        if row.cudagraph_stats is not None:
            self._read_graph(step, row.cudagraph_stats)
        if (perf := row.perf_stats) is not None:
            step.flops = fields.count(perf, "num_flops_per_gpu")
            step.memory_traffic = {
                "read": fields.count(perf, "num_read_bytes_per_gpu") or 0,
                "write": fields.count(perf, "num_write_bytes_per_gpu") or 0,
            }
        if row.iteration_details is not None:
            self._read_details(step, row.iteration_details)
        if _says_anything((row.kv_connector_stats,)):
            self._read_connectors(step, row.kv_connector_stats)

    def _read_connectors(self, step: Step, stats: Any) -> None:
        try:
            step.connectors, step.unknown_connectors = self._connectors.read(stats)
        except BaseException as error:  # noqa: BLE001 - no plain data, and it raised
            self._complain("SchedulerStats.kv_connector_stats", error, "numbers by name")

    def _caches(self, steps: Sequence[Step], stats: Sequence[Any], metric: Metric[Any]) -> list[CacheUse]:
        """Return the lookups of steps in a cache whose hits `metric` counts."""
        found = []
        for step, each, row in zip(steps, stats, self._lookups.read(stats), strict=True):
            use = self._lookups.row(row if None not in row else [count or 0 for count in row])
            hits = use.hits
            if hits > use.queries:
                hits = _clamped(step, metric, f"{type(each).__name__}.hits", hits, max(use.queries, 0))
            # Of each request that comes back the latest token is computed for the first time.
            again = use.preempted_queries - use.preempted_hits - use.preempted_requests
            found.append(CacheUse(use.queries, hits, max(again, 0)))
        return found

    def _read_external(self, step: Step, stats: Any) -> None:
        (use,) = self._caches([step], [stats], PREFIX_HITS)
        step.external_prefix_cache = use
        step.cached_by_source = self._fields.counts(stats, "hits_by_source") or None
        if not step.cached_by_source and use.hits:
            step.cached_by_source = {"external_unspecified": use.hits}

    def _speculation(self, stats: Any) -> Speculation:
        fields = self._fields
        by_position = fields.numbers(stats, "num_accepted_tokens_per_pos")
        return Speculation(
            fields.count(stats, "num_drafts") or 0,
            fields.count(stats, "num_draft_tokens") or 0,
            tuple(int(n) if -MOST_INT < n < MOST_INT else 0 for n in by_position[:MOST_POSITIONS]),
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
        except BaseException as error:  # noqa: BLE001 - not iterable, or its iterator raised
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

    def _read_iterations(self, steps: Sequence[Step], stats: list[Any]) -> None:
        steps, stats = _given(steps, stats)
        if not steps:
            return
        rows = self._outputs.named(stats)
        checkpoint()
        self._read_lists(steps, rows)
        prompts = iter(
            self._prompts.named([row.prompt_token_stats for row in rows if row.prompt_token_stats is not None])
        )
        checkpoint()
        ended: list[tuple[Step, list[Any]]] = []
        for step, each, row in zip(steps, _emptying(stats), _emptying(rows), strict=True):
            self._read_iteration(step, row)
            if row.prompt_token_stats is None:
                self._read_old_prompt(step, each)
            else:
                _read_prompt(step, next(prompts))
            if not self._details:
                step.scheduled_tokens = {"prefill": step.computed_tokens, "decode": step.generation_tokens}
            if not self._fields.is_empty(row.finished_requests):
                ended.append((step, self._listed(row.finished_requests)))
            checkpoint()
        if ended:
            self._finished.read(ended)

    def _read_iteration(self, step: Step, row: Any) -> None:
        step.iterated = True
        step.processing = self._processing(step, row.iteration_timestamp)
        step.generation_tokens = row.num_generation_tokens or 0
        step.preempted, step.corrupted = row.num_preempted_reqs or 0, row.num_corrupted_reqs or 0
        if row.num_watermarked_reqs or row.num_watermark_skipped_reqs or row.num_not_watermarked_reqs:
            counts = {status: getattr(row, name) for name, status in WATERMARKS.items()}
            step.watermarks = {status: count for status, count in counts.items() if count}

    def _read_lists(self, steps: Sequence[Step], rows: Sequence[Any]) -> None:
        for name, into in LISTS.items():
            lists, field = [getattr(row, name) for row in rows], f"IterationStats.{name}"
            if name == LATENCIES:
                for step, repeated in zip(steps, self._fields.repeated(lists, field), strict=True):
                    step.inter_token_latencies, step.inter_token_repeats = repeated
                continue
            for step, values in zip(steps, self._fields.lists(lists, field), strict=True):
                setattr(step, into, values)

    def _processing(self, step: Step, begun: float | None) -> float | None:
        """Return the time since the step's outputs came, `None` where the host's clock may have been set in between."""
        taken = step.time - (begun or 0.0)
        return max(taken, 0.0) if self._steady and -CLOCK_JITTER < taken <= step.age else None

    def _read_old_prompt(self, step: Step, stats: Any) -> None:
        """Read the prompt tokens of a release before 0.16.0, which does not tell cached ones apart."""
        tokens = self._fields.count(stats, "num_prompt_tokens") or 0
        step.prompt_tokens = {"unknown": tokens} if tokens else None
        step.computed_tokens = tokens

    def _listed(self, finished: Any) -> list[Any]:
        try:
            return list(finished)
        except BaseException as error:  # noqa: BLE001 - not iterable, or its iterator raised
            self._complain("IterationStats.finished_requests", error, "a list of finished requests")
            return []


def _given(steps: Sequence[Step], stats: list[Any]) -> tuple[Sequence[Step], list[Any]]:
    """Return the steps for which there are stats, and these; `stats` is emptied, so that nobody else keeps them."""
    given = [(step, each) for step, each in zip(steps, stats, strict=True) if each is not None]
    stats.clear()
    return [step for step, _ in given], [each for _, each in given]


def _emptying(items: list[Item]) -> Iterator[Item]:
    """Yield items, oldest first, and let go of each before the next."""
    items.reverse()
    while items:
        yield items.pop()


def _clamped(step: Step, metric: Metric[Any], field: str, value: int, most: int) -> int:
    """Return a value that is at most `most`, and take note where it is not what vLLM gave."""
    if value <= most:
        return value
    step.clamped += (metric.name,)
    message = "vLLM gave %s = %d, which cannot be more than %d; it is clamped to that (vitals.values.rejected)"
    log_once(logging.WARNING, message, field, value, most, key=f"clamp {field}")
    return most


def _says_anything(values: Sequence[Any]) -> bool:
    try:
        return any(values)
    except BaseException:  # noqa: BLE001 - an array, say, which is neither true nor false
        return True


def _engine(engine: Any) -> str:
    return str(engine) if type(engine) is int and 0 <= engine < MOST_ENGINES else OTHER


def _read_prompt(step: Step, row: Any) -> None:
    read = {
        "local_compute": row.computed or 0,
        "local_cache_hit": (row.local_cache_hit or 0) - (row.recomputed_tokens or 0),
        "external_kv_transfer": row.external_kv_transfer or 0,
    }
    step.prompt_tokens = {source: tokens for source, tokens in read.items() if tokens} or None
    step.computed_tokens = max(row.computed or 0, 0)
