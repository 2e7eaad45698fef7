"""Engines and their steps: configuration, present load, limits, sleep state, and the work of each step."""

from typing import Any

from vllm_vitals.catalog.metric import Counter, Gauge, Group, Histogram, Label, Scope
from vllm_vitals.records.step import Facts, Sleep, Step

INFO_LABELS = (
    "vllm_version",
    "runner",
    "dtype",
    "quantization",
    "max_model_len",
    "block_size",
    "kv_cache_dtype",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "prefix_caching",
    "chunked_prefill",
    "speculative_method",
    "kv_connector",
    "kv_role",
)
SLEEP_STATES = ("awake", "paused", "weights_offloaded", "discard_all")


def _waiting(step: Step) -> dict[str, float] | None:
    if step.waiting is None:
        return None
    return {"capacity": step.waiting, "deferred": step.deferred or 0}


ENGINE = Group("engine", "Engine", "The configuration of an engine, its present load, and its sleep state.")
STEP = Group("step", "Step")

INFO = ENGINE.add(
    Gauge(
        "vllm.engine.info",
        "",
        "Always 1; the labels are the configuration that an engine was started with.",
        record=Facts,
        read=lambda f: {tuple(f.info.get(name, "") for name in INFO_LABELS): 1.0},
        labels=tuple(Label(name, cap=64) for name in INFO_LABELS),
        vllm_name="vllm:cache_config_info",
    )
)
UP: Gauge[Any] = ENGINE.add(
    Gauge(
        "vllm.engine.up",
        "",
        "1 while at least one serving process of the engine is alive, else 0.",
    )
)
RUNNING = ENGINE.add(
    Gauge(
        "vllm.engine.requests.running",
        "{request}",
        "Requests in the batch at the latest step.",
        record=Step,
        read="running",
        initial=0.0,
        expires=True,
        vllm_name="vllm:num_requests_running",
    )
)
WAITING = ENGINE.add(
    Gauge(
        "vllm.engine.requests.waiting",
        "{request}",
        "Requests that wait in the scheduler at the latest step, including deferred ones.",
        record=Step,
        read=_waiting,
        initial=0.0,
        expires=True,
        vllm_name="vllm:num_requests_waiting_by_reason",
        labels=(
            Label(
                "reason",
                ("capacity", "deferred"),
                help="capacity: no room in the batch or the KV cache. deferred: held back by a transient limit "
                "(LoRA slots, KV transfer, grammar); distinguished since vLLM 0.20.0",
            ),
        ),
    )
)
LIMIT = ENGINE.add(
    Gauge(
        "vllm.engine.requests.limit",
        "{request}",
        "Maximum number of requests in one batch (max_num_seqs).",
        record=Facts,
        read="max_num_seqs",
    )
)
TOKEN_LIMIT = ENGINE.add(
    Gauge(
        "vllm.engine.step_tokens.limit",
        "{token}",
        "Maximum number of tokens in one step (max_num_batched_tokens).",
        record=Facts,
        read="max_num_batched_tokens",
    )
)
KV_FETCH = ENGINE.add(
    Gauge(
        "vllm.engine.requests.kv_fetch",
        "{request}",
        "Waiting requests by stage of their asynchronous KV load.",
        record=Step,
        read=lambda s: (s.kv_fetch or {}) if s.scheduled else None,
        expires=True,
        needs="kv_consumer",
        since="0.32.0",
        labels=(Label("stage", ("waiting_to_start", "in_progress", "completed_waiting")),),
        vllm_name="vllm:num_requests_kv_fetch_by_stage",
    )
)
SLEEP = ENGINE.add(
    Gauge(
        "vllm.engine.sleep",
        "",
        "1 for the present sleep state of the engine, 0 for the others.",
        record=Sleep,
        read=lambda e: {state: float(state == e.state) for state in SLEEP_STATES},
        labels=(
            Label(
                "state", SLEEP_STATES, help="paused is sleep level 0, weights_offloaded level 1, discard_all level 2"
            ),
        ),
        vllm_name="vllm:engine_sleep_state",
    )
)
STARTUP = ENGINE.add(
    Gauge(
        "vllm.engine.startup.duration",
        "s",
        "Time from the start of the serving process until its engines were ready.",
        record=Facts,
        read="startup",
    )
)

LIMITED: Counter[Any] = ENGINE.add(
    Counter(
        "vllm.engine.limited.duration",
        "s",
        "Time of an engine by the reason why requests were kept out of its batch. Every second counts under one "
        "reason.",
        labels=(
            Label(
                "limiter",
                ("none", "max_num_seqs", "token_budget", "kv_cache", "deferred", "idle", "asleep"),
                help="none: no request waits. max_num_seqs: the batch is full. token_budget: the tokens of a step "
                "are used up. kv_cache: no room for a typical prompt, or requests were preempted. deferred: "
                "held back by a transient limit only. idle: no requests. asleep: put to sleep",
            ),
        ),
    )
)
SATURATION: Gauge[Any] = ENGINE.add(
    Gauge(
        "vllm.engine.saturation",
        "1",
        "Nearness of an engine to turning work away: 1 while requests wait for room, else the fill level of its "
        "batch or its KV cache, whichever is fuller. Averaged over about 30 s. Suitable for autoscaling.",
        initial=0.0,
        expires=True,
        limit=1.0,
    )
)

IMBALANCE: Gauge[Any] = ENGINE.add(
    Gauge(
        "vllm.engine.imbalance",
        "1",
        "Work of the busiest engine of a model divided by the mean of all its engines, over the last 10 s: from 1 "
        "(even) to the number of engines (all on one). Exists only where one endpoint shows several engines. "
        "Absent without work, and while a process of one of them is more than 10 s behind.",
        scope=Scope.MODEL,
        labels=(
            Label(
                "of", ("running", "tokens"), help="running: requests in the batch. tokens: tokens that steps worked on"
            ),
        ),
    )
)

STEP_INTERVAL = STEP.add(
    Histogram(
        "vllm.step.interval",
        "s",
        "Time between two steps of an engine that had requests left after the first of the two.",
        record=Step,
        read="interval",
        buckets="step",
    )
)
STEP_DURATION = STEP.add(
    Histogram(
        "vllm.step.duration",
        "s",
        "Time that the engine spent on a step, from vLLM's iteration details.",
        record=Step,
        read="duration",
        buckets="step",
        needs="iteration_details",
        since="0.26.0",
    )
)
STEP_PROCESSING = STEP.add(
    Histogram(
        "vllm.step.processing.duration",
        "s",
        "Time from the arrival of a step's outputs in the serving process until they are on their way to the "
        "clients. It includes turning tokens into text and any other work on the event loop. All streams of the "
        "process wait that long.",
        record=Step,
        read=lambda s: s.processing if s.counts else None,
        buckets="step",
    )
)
STEP_TOKENS = STEP.add(
    Histogram(
        "vllm.step.tokens",
        "{token}",
        "Prompt tokens computed and tokens generated in a step, without cached and transferred tokens. A chunked "
        "prefill counts when its last chunk is done. Before vLLM 0.16.0, cached tokens are included. vLLM's "
        "counterpart includes them up to 0.22, and it also counts a step of 0 tokens when requests end without a "
        "token, for example when clients leave.",
        record=Step,
        read=lambda s: s.computed_tokens + s.generation_tokens if s.iterated and s.counts else None,
        buckets="iteration_tokens",
        vllm_name="vllm:iteration_tokens_total",
    )
)
SCHEDULED_TOKENS = STEP.add(
    Counter(
        "vllm.step.scheduled_tokens",
        "{token}",
        "Tokens that steps worked on: from vLLM's iteration details where these are enabled, else computed prompt "
        "tokens (counted at the end of a prefill) and generated tokens.",
        record=Step,
        read="scheduled_tokens",
        labels=(Label("phase", ("prefill", "decode")),),
    )
)
GRAPH_TOKENS = STEP.add(
    Counter(
        "vllm.cuda_graph.tokens",
        "{token}",
        "Tokens run through the model, with and without CUDA-graph padding.",
        record=Step,
        read="graph_tokens",
        labels=(Label("kind", ("padded", "unpadded")),),
        needs="cudagraph",
        since="0.13.0",
    )
)
FLOPS = STEP.add(
    Counter(
        "vllm.perf.flops",
        "{operation}",
        "Floating-point operations per GPU, estimated by vLLM.",
        record=Step,
        read="flops",
        needs="mfu",
        since="0.14.0",
        vllm_name="vllm:estimated_flops_per_gpu_total",
    )
)
MEMORY_TRAFFIC = STEP.add(
    Counter(
        "vllm.perf.memory_traffic",
        "By",
        "Bytes moved to and from GPU memory per GPU, estimated by vLLM.",
        record=Step,
        read="memory_traffic",
        labels=(Label("direction", ("read", "write")),),
        needs="mfu",
        since="0.14.0",
        vllm_name="vllm:estimated_{read,write}_bytes_per_gpu_total",
    )
)
FLOPS_LIMIT: Gauge[Any] = STEP.add(
    Gauge(
        "vllm.perf.flops.limit",
        "{operation}/s",
        "Peak floating-point operations per second of one GPU, dense, at the precision of the engine. Absent while "
        "unknown.",
        needs="mfu",
        since="0.14.0",
    )
)
MEMORY_TRAFFIC_LIMIT: Gauge[Any] = STEP.add(
    Gauge(
        "vllm.perf.memory_traffic.limit",
        "By/s",
        "Peak bytes per second between one GPU and its memory. Absent while unknown.",
        needs="mfu",
        since="0.14.0",
    )
)
MFU: Gauge[Any] = STEP.add(
    Gauge(
        "vllm.perf.mfu",
        "1",
        "Model FLOPs utilization: `vllm.perf.flops` per second divided by `vllm.perf.flops.limit`. Averaged over "
        "about 30 s, including idle time.",
        expires=True,
        needs="mfu",
        since="0.14.0",
    )
)
MEMORY_TRAFFIC_UTILIZATION: Gauge[Any] = STEP.add(
    Gauge(
        "vllm.perf.memory_traffic.utilization",
        "1",
        "Model bandwidth utilization: `vllm.perf.memory_traffic` (read and written) per second divided by "
        "`vllm.perf.memory_traffic.limit`. Averaged over about 30 s, including idle time.",
        expires=True,
        needs="mfu",
        since="0.14.0",
    )
)
