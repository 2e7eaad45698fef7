"""The engine itself: what it was started with, what it holds right now, whether it sleeps."""

from typing import Any

from vllm_vitals.catalog.metric import Counter, Gauge, Histogram, Label, Scope
from vllm_vitals.records.step import Facts, Sleep, Step

INFO_LABELS = (
    "vllm_version", "runner", "dtype", "quantization", "max_model_len", "block_size", "kv_cache_dtype",
    "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "prefix_caching",
    "chunked_prefill", "speculative_method", "kv_connector", "kv_role",
)  # fmt: skip
SLEEP_STATES = ("awake", "paused", "weights_offloaded", "discard_all")


def _waiting(step: Step) -> dict[str, float] | None:
    if step.waiting is None:
        return None
    return {"capacity": step.waiting, "deferred": step.deferred or 0}


INFO = Gauge(
    "vllm.engine.info", "", "Always 1; the labels are facts that an engine was started with.",
    record=Facts, read=lambda f: {tuple(f.info.get(name, "") for name in INFO_LABELS): 1.0},
    labels=tuple(Label(name, cap=64) for name in INFO_LABELS), vllm_name="vllm:cache_config_info",
)  # fmt: skip
UP: Gauge[Any] = Gauge(
    "vllm.engine.up",
    "",
    "1 while a serving process of the engine is there, 0 once all of them are gone.",
)
RUNNING = Gauge(
    "vllm.engine.requests.running", "{request}", "Requests in the batch at the latest step.",
    record=Step, read="running", initial=0.0, expires=True, vllm_name="vllm:num_requests_running",
)  # fmt: skip
WAITING = Gauge(
    "vllm.engine.requests.waiting", "{request}",
    "Requests that the scheduler holds back at the latest step, deferred ones included.",
    record=Step, read=_waiting, initial=0.0, expires=True,
    vllm_name="vllm:num_requests_waiting_by_reason",
    labels=(Label("reason", ("capacity", "deferred"),
                  help="capacity: no room in the batch or the KV cache. deferred: held by a transient limit "
                       "(LoRA slots, KV transfer, grammar); told apart since vLLM 0.20.0"),),
)  # fmt: skip
LIMIT = Gauge(
    "vllm.engine.requests.limit", "{request}", "Most requests in one batch (max_num_seqs).",
    record=Facts, read="max_num_seqs",
)  # fmt: skip
TOKEN_LIMIT = Gauge(
    "vllm.engine.step_tokens.limit", "{token}", "Most tokens in one step (max_num_batched_tokens).",
    record=Facts, read="max_num_batched_tokens",
)  # fmt: skip
KV_FETCH = Gauge(
    "vllm.engine.requests.kv_fetch", "{request}", "Waiting requests by stage of their asynchronous KV load.",
    record=Step, read=lambda s: (s.kv_fetch or {}) if s.scheduled else None, expires=True, needs="kv_consumer", since="0.32.0",
    labels=(Label("stage", ("waiting_to_start", "in_progress", "completed_waiting")),),
    vllm_name="vllm:num_requests_kv_fetch_by_stage",
)  # fmt: skip
SLEEP = Gauge(
    "vllm.engine.sleep", "", "1 for the state that the engine is in, 0 for the others.",
    record=Sleep, read=lambda e: {state: float(state == e.state) for state in SLEEP_STATES},
    labels=(Label("state", SLEEP_STATES, help="paused is sleep level 0, weights_offloaded level 1, discard_all level 2"),),
    vllm_name="vllm:engine_sleep_state",
)  # fmt: skip
STARTUP = Gauge(
    "vllm.engine.startup.duration", "s",
    "From the start of the serving process until its engines were ready.",
    record=Facts, read="startup",
)  # fmt: skip

LIMITED: Counter[Any] = Counter(
    "vllm.engine.limited.duration", "s",
    "Time of an engine by what kept requests out of its batch: all its time, each second under one value.",
    labels=(Label("limiter", ("none", "max_num_seqs", "token_budget", "kv_cache", "deferred", "idle", "asleep"),
                  help="none: it works and nobody waits. max_num_seqs: the batch is full. token_budget: the tokens of "
                       "a step are given away. kv_cache: no room for a typical prompt, or requests were preempted. "
                       "deferred: held by a transient limit only. idle: nothing to do. asleep: put to sleep"),),
)  # fmt: skip
SATURATION: Gauge[Any] = Gauge(
    "vllm.engine.saturation", "1",
    "How near an engine is to turning work away: 1 while requests wait for room, else the fuller of its batch and its "
    "KV cache; averaged over about 30 s. To scale on.",
    initial=0.0, expires=True, limit=1.0,
)  # fmt: skip

IMBALANCE: Gauge[Any] = Gauge(
    "vllm.engine.imbalance", "1",
    "Work of the busiest engine of a model over the mean of all its engines, in the last 10 s: 1 is even, the number of "
    "engines is all on one. Only where one endpoint shows several engines; absent without work, and once a process of "
    "one of them is 10 s behind.",
    scope=Scope.MODEL, labels=(Label("of", ("running", "tokens"), help="running: requests in the batch. tokens: tokens that "
                                     "steps worked on"),),
)  # fmt: skip

STEP_INTERVAL = Histogram(
    "vllm.step.interval", "s",
    "Time between two steps of an engine that had requests left after the first of them.",
    record=Step, read="interval", buckets="step",
)  # fmt: skip
STEP_DURATION = Histogram(
    "vllm.step.duration", "s", "Time the engine spent on a step, as vLLM's iteration details report it.",
    record=Step, read="duration", buckets="step", needs="iteration_details", since="0.26.0",
)  # fmt: skip
STEP_PROCESSING = Histogram(
    "vllm.step.processing.duration", "s",
    "Time from when the serving process got a step's outputs to when they were on their way to the clients: it turns tokens "
    "into text, and whatever else is due on its event loop comes between. All streams of the process wait that long.",
    record=Step, read=lambda s: s.processing if s.counts else None, buckets="step",
)  # fmt: skip
STEP_TOKENS = Histogram(
    "vllm.step.tokens", "{token}",
    "Prompt tokens computed and tokens generated in a step; cached and transferred tokens do not count. A "
    "chunked prefill counts when its last chunk is done. Before vLLM 0.16.0 cached tokens do count. vLLM's counterpart "
    "counts them up to 0.22, and it counts a step of 0 tokens wherever requests end without one, as when clients leave.",
    record=Step, read=lambda s: s.computed_tokens + s.generation_tokens if s.iterated and s.counts else None,
    buckets="iteration_tokens", vllm_name="vllm:iteration_tokens_total",
)  # fmt: skip
SCHEDULED_TOKENS = Counter(
    "vllm.step.scheduled_tokens", "{token}",
    "Tokens that steps worked on: from vLLM's iteration details where they are enabled, else computed "
    "prompt tokens (counted at the end of a prefill) and generated tokens.",
    record=Step, read="scheduled_tokens", labels=(Label("phase", ("prefill", "decode")),),
)  # fmt: skip
GRAPH_TOKENS = Counter(
    "vllm.cuda_graph.tokens", "{token}", "Tokens run through the model, with and without CUDA-graph padding.",
    record=Step, read="graph_tokens", labels=(Label("kind", ("padded", "unpadded")),),
    needs="cudagraph", since="0.13.0",
)  # fmt: skip
FLOPS = Counter(
    "vllm.perf.flops", "{operation}", "Floating-point operations per GPU, as vLLM estimates them.",
    record=Step, read="flops", needs="mfu", since="0.14.0",
    vllm_name="vllm:estimated_flops_per_gpu_total",
)  # fmt: skip
MEMORY_TRAFFIC = Counter(
    "vllm.perf.memory_traffic", "By", "Bytes moved to and from GPU memory per GPU, as vLLM estimates them.",
    record=Step, read="memory_traffic", labels=(Label("direction", ("read", "write")),),
    needs="mfu", since="0.14.0", vllm_name="vllm:estimated_{read,write}_bytes_per_gpu_total",
)  # fmt: skip
FLOPS_LIMIT: Gauge[Any] = Gauge(
    "vllm.perf.flops.limit", "{operation}/s",
    "Most floating-point operations per second of one GPU, dense and at the precision that the engine computes with; "
    "absent while that is not known.",
    needs="mfu", since="0.14.0",
)  # fmt: skip
MEMORY_TRAFFIC_LIMIT: Gauge[Any] = Gauge(
    "vllm.perf.memory_traffic.limit", "By/s",
    "Most bytes per second between one GPU and its memory; absent while that is not known.",
    needs="mfu", since="0.14.0",
)  # fmt: skip
MFU: Gauge[Any] = Gauge(
    "vllm.perf.mfu", "1",
    "Model FLOPs utilization: `vllm.perf.flops` per second over `vllm.perf.flops.limit`, averaged over about 30 s, "
    "idle time included.",
    expires=True, needs="mfu", since="0.14.0",
)  # fmt: skip
MEMORY_TRAFFIC_UTILIZATION: Gauge[Any] = Gauge(
    "vllm.perf.memory_traffic.utilization", "1",
    "Model bandwidth utilization: `vllm.perf.memory_traffic`, read and written, per second over "
    "`vllm.perf.memory_traffic.limit`, averaged over about 30 s, idle time included.",
    expires=True, needs="mfu", since="0.14.0",
)  # fmt: skip

ENGINE = (INFO, UP, RUNNING, WAITING, LIMIT, TOKEN_LIMIT, KV_FETCH, LIMITED, SATURATION, IMBALANCE, SLEEP, STARTUP)
STEP = (
    STEP_INTERVAL, STEP_DURATION, STEP_PROCESSING, STEP_TOKENS, SCHEDULED_TOKENS, GRAPH_TOKENS, FLOPS, MEMORY_TRAFFIC, FLOPS_LIMIT,
    MEMORY_TRAFFIC_LIMIT, MFU, MEMORY_TRAFFIC_UTILIZATION,
)  # fmt: skip
