"""What engines take: GPU time, energy and, once a price is set, money. Ratios of these hold for any window of time."""

from typing import Any

from vllm_vitals.catalog.metric import MAX_JOULES, Counter, Gauge, Label, Scope
from vllm_vitals.records.step import Facts

BUSY, IDLE, ASLEEP = STATES = ("busy", "idle", "asleep")

STATE = Label("state", STATES, help="busy: it has requests. idle: it has none. asleep: put to sleep")
CURRENCY = Label("currency", cap=1, help="the setting `price.currency`")

GPUS = Gauge(
    "vllm.engine.gpus", "{gpu}",
    "GPUs that one engine works on: tensor, pipeline and prefill context parallel size multiplied. Without GPUs, its workers.",
    record=Facts, read="gpus",
)  # fmt: skip
GPU_TIME: Counter[Any] = Counter(
    "vllm.engine.gpu.time", "s",
    "Time of an engine's GPUs since it was ready: its own time, all of it, times `vllm.engine.gpus`.", labels=(STATE,),
)  # fmt: skip
ENERGY: Counter[Any] = Counter(
    "vllm.engine.energy", "J",
    "Energy that the GPUs of an engine used, where it is known which GPUs are its: `hw.energy` by what the engine did.",
    limit=MAX_JOULES,
    labels=(Label("state", cap=len(STATES), help="`busy`, `idle`, `asleep`, as in `vllm.engine.gpu.time`"),),
)  # fmt: skip
COST: Counter[Any] = Counter(
    "vllm.engine.cost", "{currency}",
    "Price of the GPU time of an engine: `vllm.engine.gpu.time` times the setting `price.per_gpu_hour`, without which there "
    "is no series.",
    labels=(STATE, CURRENCY),
)  # fmt: skip
SAVED_COST: Counter[Any] = Counter(
    "vllm.prefix_cache.saved_cost", "{currency}",
    "Price of the GPU time that cached prompt tokens spared, at most: `vllm.prefix_cache.saved_prefill` times "
    "`vllm.engine.gpus` times the setting `price.per_gpu_hour`, without which there is no series.",
    labels=(CURRENCY,),
)  # fmt: skip
PRICE: Gauge[Any] = Gauge(
    "vllm.gpu.price", "{currency}/h", "Price of one GPU for an hour, as the setting `price.per_gpu_hour` has it.",
    scope=Scope.PROCESS, labels=(CURRENCY,),
)  # fmt: skip

COSTS = (GPUS, GPU_TIME, ENERGY, COST, SAVED_COST, PRICE)
