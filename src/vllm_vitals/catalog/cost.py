"""GPU time, energy and, if a price is set, cost of engines. Their ratios work for any time window."""

from typing import Any

from vllm_vitals.catalog.metric import MAX_JOULES, Counter, Gauge, Group, Label, Scope
from vllm_vitals.records.step import Facts

BUSY, IDLE, ASLEEP = STATES = ("busy", "idle", "asleep")

STATE = Label("state", STATES, help="busy: has requests. idle: has none. asleep: put to sleep")
CURRENCY = Label("currency", cap=1, help="the setting `price.currency`")

COSTS = Group(
    "cost",
    "Cost and energy",
    "GPU time, energy and money that engines use. [Cost](cost.md) shows how to divide these by tokens and requests.",
)

GPUS = COSTS.add(
    Gauge(
        "vllm.engine.gpus",
        "{gpu}",
        "Number of GPUs that one engine works on: tensor, pipeline and prefill context parallel size multiplied. "
        "Without GPUs, the number of its workers.",
        record=Facts,
        read="gpus",
    )
)
GPU_TIME: Counter[Any] = COSTS.add(
    Counter(
        "vllm.engine.gpu.time",
        "s",
        "GPU time of an engine since it was ready: elapsed time times `vllm.engine.gpus`, by the state of the engine.",
        labels=(STATE,),
    )
)
ENERGY: Counter[Any] = COSTS.add(
    Counter(
        "vllm.engine.energy",
        "J",
        "Energy used by the GPUs of an engine (`hw.energy`), by the state of the engine. Only where it is known "
        "which GPUs the engine uses.",
        limit=MAX_JOULES,
        labels=(Label("state", cap=len(STATES), help="`busy`, `idle`, `asleep`, as in `vllm.engine.gpu.time`"),),
    )
)
COST: Counter[Any] = COSTS.add(
    Counter(
        "vllm.engine.cost",
        "{currency}",
        "Cost of an engine's GPU time: `vllm.engine.gpu.time` times the setting `price.per_gpu_hour`. No series if "
        "the setting is unset.",
        labels=(STATE, CURRENCY),
    )
)
SAVED_COST: Counter[Any] = COSTS.add(
    Counter(
        "vllm.prefix_cache.saved_cost",
        "{currency}",
        "Upper bound of the GPU cost that cached prompt tokens saved: `vllm.prefix_cache.saved_prefill` times "
        "`vllm.engine.gpus` times the setting `price.per_gpu_hour`. No series if the setting is unset.",
        labels=(CURRENCY,),
    )
)
PRICE: Gauge[Any] = COSTS.add(
    Gauge(
        "vllm.gpu.price",
        "{currency}/h",
        "Price of one GPU per hour, from the setting `price.per_gpu_hour`.",
        scope=Scope.PROCESS,
        labels=(CURRENCY,),
    )
)
