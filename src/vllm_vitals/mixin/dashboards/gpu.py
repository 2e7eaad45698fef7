"""GPUs, the energy that they use and the money that they take."""

from typing import Any

from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.dashboard import Panel

from vllm_vitals.catalog import Metric, cost, engine, gpu, requests, slo
from vllm_vitals.mixin.dashboards.board import Board, Context, Row
from vllm_vitals.mixin.dashboards.panels import THIRD, figure, lines
from vllm_vitals.mixin.dashboards.query import Query, optional
from vllm_vitals.mixin.dashboards.shapes import ENGINE, ENGINE_NAME, PERCENT, by_label, column
from vllm_vitals.mixin.dashboards.tables import rows
from vllm_vitals.mixin.dashboards.theme import GREEN, GREY, ORANGE, SKY, VERMILION
from vllm_vitals.mixin.promql import Vector, Wanted, any_of, joined, ratio
from vllm_vitals.records.gpu import REASONS

MILLION, JOULES_PER_WATT_HOUR, SECONDS_PER_HOUR = 1e6, 3600, 3600
STATES = {"busy": SKY, "idle": ORANGE, "asleep": GREY}
DEVICE = ("instance", "hw_id")
DEVICE_NAME = "{{instance}} GPU {{index}}"
UNSAMPLED, NO_PRICE, NO_MFU = "no GPU is sampled", "no price is set", "needs --enable-mfu-metrics"


def _of_devices(c: Context, metric: Metric[Any], **wanted: Wanted) -> Query:
    """Return a gauge by device, which is called by the number that its driver gives it."""
    return Query(_numbered(c, c.queries.max(metric, DEVICE, **wanted)), DEVICE_NAME)


def _numbered(c: Context, vector: Vector) -> Vector:
    return joined(vector, c.queries.max(gpu.INFO, (*DEVICE, "index")), DEVICE, ("index",))


def _generated(c: Context) -> Vector:
    return c.queries.rate(requests.GENERATION_TOKENS)


def per_token(c: Context) -> Builder[Panel]:
    return figure(
        "Energy per token", "Energy of the engines' GPUs, idle time included, by the tokens generated. Falls as batches get "
        "fuller. Rising at steady load: look for throttling, or for idle engines.",
        "joule", Query(ratio(c.queries.rate(cost.ENERGY), _generated(c)), "per token"), decimals=2,
    )  # fmt: skip


def per_million(c: Context) -> Builder[Panel]:
    price = ratio(c.queries.rate(cost.COST, ("currency",)), _generated(c), on=(), group_left=())
    return figure(
        "Cost per million tokens", "Price of the GPUs' time, idle time included, by a million tokens generated, in the currency "
        "named. Needs the setting price.per_gpu_hour.",
        "short", Query(price * MILLION, "{{currency}}"), decimals=2, none=NO_PRICE,
    )  # fmt: skip


def per_good_million(c: Context) -> Builder[Panel]:
    good = c.queries.rate(slo.TOKENS, ("slo",), outcome="good")
    paid = c.queries.rate(cost.COST)
    for_one = ratio(good, paid, on=(), group_left=()) > 0
    return figure(
        "Cost per million good tokens", "The same by tokens of requests that met their SLO, for each SLO. Far above the cost per million "
        "tokens: money is spent on answers that come too late.",
        "short", Query(MILLION / for_one, "{{slo}}"), decimals=2, none=NO_PRICE,
    )  # fmt: skip


def idle(c: Context) -> Builder[Panel]:
    return figure(
        "Idle share", "Share of the GPU time in which engines had no request, or slept. This is paid for and brings nothing: "
        "scale in, or share the GPUs.",
        PERCENT, Query(c.queries.share(cost.GPU_TIME, {"state": any_of("idle", "asleep")}), "idle"), decimals=0,
    )  # fmt: skip


def utilization(c: Context) -> Builder[Panel]:
    return figure(
        "MFU", "Model FLOPs utilization: what was computed for tokens by what the GPUs can compute, mean of the engines. "
        "Decode-heavy loads stay far below prefill-heavy ones: compare with bandwidth.",
        PERCENT, Query(c.queries.avg(engine.MFU), "MFU"), decimals=1, none=NO_MFU,
    )  # fmt: skip


def power_now(c: Context) -> Builder[Panel]:
    return figure(
        "Power", "What all GPUs of the engines draw. Compare with the power that the rack was planned for.", "watt", Query(c.queries.sum(gpu.POWER), "power"), none=UNSAMPLED,
    )  # fmt: skip


def used(c: Context) -> Builder[Panel]:
    joules = c.queries.over("$__range").increase(gpu.ENERGY)
    return figure(
        "Energy used", "Energy that all GPUs used in the time shown, by their own counters. Multiply with the emission factor of "
        "your power for a report.",
        "watth", Query(joules / JOULES_PER_WATT_HOUR, "energy"), none=UNSAMPLED,
    )  # fmt: skip


def time_by_state(c: Context) -> Builder[Panel]:
    shares = ratio(c.queries.rate(cost.GPU_TIME, ("state",)), c.queries.rate(cost.GPU_TIME), on=(), group_left=())
    return lines(
        "GPU time by state", "Share of the GPU time in which engines were busy, idle, asleep.",
        PERCENT, Query(shares, "{{state}}", STATES), stacked=True, most=1, width=THIRD,
    )  # fmt: skip


def energy(c: Context) -> Builder[Panel]:
    return lines(
        "Power by state", "Power of the engines' GPUs by what the engines did. What idle engines draw is saved by scaling in.",
        "watt", Query(c.queries.rate(cost.ENERGY, ("state",)), "{{state}}", STATES), stacked=True, width=THIRD, none=UNSAMPLED,
    )  # fmt: skip


def money(c: Context) -> Builder[Panel]:
    return lines(
        "Cost per hour", "Price of the GPUs' time at the present pace, by state, in the currency named.",
        "short", Query(c.queries.rate(cost.COST, ("state", "currency")) * SECONDS_PER_HOUR, "{{state}}, {{currency}}"), stacked=True,
        width=THIRD, none=NO_PRICE,
    )  # fmt: skip


def efficiency(c: Context) -> Builder[Panel]:
    per_watt = ratio(c.queries.rate(requests.GENERATION_TOKENS, ENGINE), c.queries.rate(cost.ENERGY, ENGINE))
    return lines(
        "Tokens per joule by engine", "Engines of the same kind should be alike. One far below: throttled, or routed too little.",
        "suffix:tok/J", Query(per_watt, ENGINE_NAME), width=THIRD, none=UNSAMPLED,
    )  # fmt: skip


def prices(c: Context) -> Builder[Panel]:
    gpus, price = c.queries.max(cost.GPUS, ENGINE), c.queries.max(cost.PRICE, ("instance",))
    return rows(
        "What is paid for", "GPUs of each engine, and what they cost in an hour: their number times the setting "
        "price.per_gpu_hour.",
        ENGINE, *column(lambda: gpus, "GPUs"),
        *column(lambda: gpus.combined("*", price, on=("instance",), group_left=()), "price per hour"),
        worst="GPUs", width=THIRD, none="no engine reports",
    )  # fmt: skip


def roofline(c: Context) -> Builder[Panel]:
    return lines(
        "MFU and bandwidth", "Shares of what the GPUs can compute and of what their memory can carry. Bandwidth high and MFU low: "
        "bound by memory, so larger batches are free. Both low: the host is the bottleneck, or there is no work.",
        PERCENT, Query(c.queries.avg(engine.MFU), "compute", {"compute": SKY}),
        Query(c.queries.avg(engine.MEMORY_TRAFFIC_UTILIZATION), "memory bandwidth", {"memory bandwidth": ORANGE}), most=1,
        none=NO_MFU,
    )  # fmt: skip


def compute(c: Context) -> Builder[Panel]:
    return lines(
        "Compute per GPU", "Floating-point operations per second of one GPU as vLLM estimates them, mean of the engines, and what "
        "it can do at most (dashed).",
        "flops", Query(_mean_rate(c, engine.FLOPS), "used", {"used": SKY}),
        *optional(lambda: Query(c.queries.avg(engine.FLOPS_LIMIT), "limit", limit=True)), none=NO_MFU,
    )  # fmt: skip


def bandwidth(c: Context) -> Builder[Panel]:
    by = _mean_rate(c, engine.MEMORY_TRAFFIC, "direction")
    return lines(
        "Memory traffic per GPU", "Bytes per second between one GPU and its memory as vLLM estimates them, mean of the engines, "
        "and what it can carry at most (dashed).",
        "Bps", Query(by, "{{direction}}", {"read": SKY, "write": ORANGE}),
        *optional(lambda: Query(c.queries.avg(engine.MEMORY_TRAFFIC_LIMIT), "limit", limit=True)), stacked=True, none=NO_MFU,
    )  # fmt: skip


def _mean_rate(c: Context, metric: Metric[Any], *by: str) -> Vector:
    """Return the mean over the engines of what a counter grows by in a second."""
    engines = c.queries.count(engine.RUNNING)
    return c.queries.rate(metric, by).combined("/", engines, on=(), group_left=())


def busy(c: Context) -> Builder[Panel]:
    return lines(
        "GPU utilization", "Share of the time in which the GPU worked on anything at all, as its driver measures it. It is near 1 "
        "long before the GPU is full: MFU tells how well it is used.",
        PERCENT, _of_devices(c, gpu.UTILIZATION), most=1, width=THIRD, none=UNSAMPLED,
    )  # fmt: skip


def memory(c: Context) -> Builder[Panel]:
    return lines(
        "GPU memory in use", "By whatever process. Much more than this vLLM holds: somebody else is on the GPU.",
        PERCENT, _of_devices(c, gpu.MEMORY_UTILIZATION), most=1, width=THIRD, none=UNSAMPLED,
    )  # fmt: skip


def held(c: Context) -> Builder[Panel]:
    q = c.queries
    return lines(
        "GPU memory", "What all processes use, what this vLLM holds, and what there is (dashed), of all GPUs together.",
        "bytes", Query(q.sum(gpu.MEMORY_USAGE), "in use", {"in use": ORANGE}),
        Query(q.sum(gpu.PROCESS_MEMORY), "this vLLM", {"this vLLM": SKY}), Query(q.sum(gpu.MEMORY_LIMIT), "there is", limit=True),
        width=THIRD, none=UNSAMPLED,
    )  # fmt: skip


def activity(c: Context) -> Builder[Panel]:
    return lines(
        "Memory activity", "Share of the time in which the GPU's memory was read or written. High in decode, which is bound by it.",
        PERCENT, _of_devices(c, gpu.MEMORY_ACTIVITY), most=1, width=THIRD, none=UNSAMPLED,
    )  # fmt: skip


def power(c: Context) -> Builder[Panel]:
    return lines(
        "Power by GPU", "What each draws, and the lowest limit of them (dashed). At the limit clocks are kept down: raise it, or "
        "accept it.",
        "watt", _of_devices(c, gpu.POWER), Query(c.queries.min(gpu.POWER_LIMIT), "limit", limit=True), width=THIRD, none=UNSAMPLED,
    )  # fmt: skip


def temperature(c: Context) -> Builder[Panel]:
    hottest = c.queries.max(gpu.TEMPERATURE, (*DEVICE, "hw_temperature_sensor_location"))
    return lines(
        "Temperature", "Of each GPU and its memory, and from where on the first of them slows down (dashed). Near it: airflow, "
        "neighbours, a power limit.",
        "celsius", Query(_numbered(c, hottest), f"{DEVICE_NAME} {{{{hw_temperature_sensor_location}}}}"),
        Query(c.queries.min(gpu.TEMPERATURE_LIMIT, hw_limit_type="throttled"), "slows down at", limit=True), width=THIRD,
        none=UNSAMPLED,
    )  # fmt: skip


def throttled(c: Context) -> Builder[Panel]:
    return lines(
        "GPUs with clocks kept down", "How many at a time, by reason. sw_power_cap under full load is normal. Thermal reasons and "
        "hw_slowdown are faults: cooling, power supply.",
        "short", by_label(c.queries.rate(gpu.THROTTLED, ("reason",)), "reason", REASONS), width=THIRD, none=UNSAMPLED,
    )  # fmt: skip


def clocks(c: Context) -> Builder[Panel]:
    slowest = c.queries.min(gpu.CLOCK, ("domain",))
    return lines(
        "Slowest clocks", "The lowest clock among the GPUs. In tensor parallelism all wait for the slowest.",
        "hertz", Query(slowest, "{{domain}}", {"sm": SKY, "memory": ORANGE}), width=THIRD, none=UNSAMPLED,
    )  # fmt: skip


def links(c: Context) -> Builder[Panel]:
    moved = c.queries.rate(gpu.IO, ("link", "network_io_direction"))
    return lines(
        "Traffic between GPUs and host", "Bytes per second over NVLink and PCIe. PCIe busy in tensor parallelism: the GPUs are not "
        "joined by NVLink.",
        "Bps", Query(moved, "{{link}} {{network_io_direction}}"), width=THIRD, none=UNSAMPLED,
    )  # fmt: skip


def errors(c: Context) -> Builder[Panel]:
    return lines(
        "Memory errors (ECC)", "Errors in the window. Single corrected ones are harmless; uncorrected ones call for a new GPU.",
        "short", by_label(c.queries.increase(gpu.HARDWARE_ERRORS, ("error_type",)), "error_type", ("corrected", "uncorrected")),
        width=THIRD, none=UNSAMPLED,
    )  # fmt: skip


def health(c: Context) -> Builder[Panel]:
    q = c.queries
    colours = {"ok": GREEN, "degraded": ORANGE, "failed": VERMILION}
    return lines(
        "GPUs by status", "degraded: memory rows wait for a reset to be replaced. failed: it does not answer, and its engine will "
        "not either: drain the node.",
        "short", Query(q.sum(gpu.STATUS, ("hw_state",)), "{{hw_state}}", colours), stacked=True, width=THIRD, none=UNSAMPLED,
    )  # fmt: skip


def devices(c: Context) -> Builder[Panel]:
    facts = ("instance", "index", "hw_id", "hw_name", "hw_vendor", "hw_parent", "model_name", "engine", "pci_bus",
             "hw_driver_version", "hw_firmware_version", "hw_serial_number")  # fmt: skip
    return rows(
        "GPUs", "Which GPU works for which engine. Different drivers or models in one fleet explain different speeds.", facts,
        *column(lambda: c.queries.max(gpu.INFO, facts), "info"), worst="instance", hide=True, none=UNSAMPLED,
    )  # fmt: skip


BOARD = Board(
    "gpu", "GPU, energy and cost", "What do tokens cost, and what do the GPUs do for it?",
    (
        Row("What do tokens cost?", (per_token, per_million, per_good_million, idle, utilization, power_now, used)),
        Row("Where it goes", (time_by_state, energy, money, efficiency, prices)),
        Row("How well are the GPUs used?", (roofline, compute, bandwidth)),
        Row("GPUs", (busy, activity, memory, held, power, clocks, temperature, throttled, links)),
        Row("Their health", (health, errors, devices)),
    ),
)  # fmt: skip
