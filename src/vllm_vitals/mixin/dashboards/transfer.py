"""KV cache between engines, and to and from what is kept outside the GPU; rows of the board about caches."""

from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.dashboard import Panel

from vllm_vitals.catalog import connectors
from vllm_vitals.mixin.dashboards.board import Context, Row
from vllm_vitals.mixin.dashboards.panels import THIRD, lines
from vllm_vitals.mixin.dashboards.query import Query
from vllm_vitals.mixin.dashboards.shapes import P99, PERCENT, SECONDS
from vllm_vitals.mixin.dashboards.theme import ORANGE, PINK, VERMILION
from vllm_vitals.mixin.promql import ratio

NO_CONNECTOR = "no KV connector reports"
WAY, WAY_NAME = ("connector", "direction"), "{{connector}} {{direction}}"
SHELF, SHELF_NAME = ("connector", "tier"), "{{connector}} {{tier}}"


def moved(c: Context) -> Builder[Panel]:
    return lines(
        "KV cache moved", "Bytes per second by connector and direction: receive and send between engines, load and store to and "
        "from what is kept outside the GPU. At the speed of the link it is the bottleneck.",
        "Bps", Query(c.queries.rate(connectors.IO, WAY), WAY_NAME), width=THIRD, none=NO_CONNECTOR,
    )  # fmt: skip


def speed(c: Context) -> Builder[Panel]:
    one = ratio(c.queries.rate(connectors.IO, WAY), c.queries.rate(connectors.OPERATION_TIME, WAY))
    return lines(
        "Speed of one transfer", "Bytes by the time that transfers took. Falling as more run at once: the link is shared out. Low "
        "always: small pieces, see their size.",
        "Bps", Query(one, WAY_NAME), width=THIRD, none=NO_CONNECTOR,
    )  # fmt: skip


def duration(c: Context) -> Builder[Panel]:
    return lines(
        "Time of a transfer, p99", "By direction, and the time to hand one to the network. A request waits that long before its "
        "first token when its cache comes from elsewhere.",
        SECONDS,
        Query(c.queries.quantile(P99, connectors.DURATION, ("direction",)), "{{direction}}"),
        Query(c.queries.quantile(P99, connectors.POST_DURATION), "hand over", {"hand over": ORANGE}), width=THIRD,
        none=NO_CONNECTOR,
    )  # fmt: skip


def size(c: Context) -> Builder[Panel]:
    return lines(
        "Size of a transfer", "Mean bytes, and in how many pieces of memory (right). Many small pieces are slow: larger KV blocks "
        "help.",
        "bytes",
        Query(c.queries.mean(connectors.SIZE, ("direction",)), "{{direction}}"),
        Query(c.queries.mean(connectors.DESCRIPTORS), "pieces", {"pieces": PINK}, right="short"), width=THIRD, none=NO_CONNECTOR,
    )  # fmt: skip


def failures(c: Context) -> Builder[Panel]:
    q = c.queries
    return lines(
        "KV transfers that failed", "Per second: by kind of failure, requests whose cache nobody fetched in time, and notifications "
        "that came after that. Expired ones are a decode side that is behind: add to it.",
        "suffix:/s",
        Query(q.rate(connectors.FAILURES, ("connector", "kind")), "{{connector}} {{kind}}"),
        Query(q.rate(connectors.EXPIRED), "expired", {"expired": ORANGE}),
        Query(q.rate(connectors.LATE_NOTIFICATIONS), "late notification", {"late notification": VERMILION}), width=THIRD,
        none=NO_CONNECTOR,
    )  # fmt: skip


def found(c: Context) -> Builder[Panel]:
    hits = ratio(c.queries.rate(connectors.HITS, SHELF), c.queries.rate(connectors.QUERIED, SHELF))
    return lines(
        "Blocks found outside the GPU", "Share of the blocks looked up that were there. Low: it holds too little, or prompts have "
        "little in common.",
        PERCENT, Query(hits, SHELF_NAME), most=1, width=THIRD, none=NO_CONNECTOR,
    )  # fmt: skip


def lookups(c: Context) -> Builder[Panel]:
    return lines(
        "Time of a look-up, p99", "Of a look into what is kept outside the GPU. The scheduler waits for the synchronous ones: above a "
        "millisecond they slow every step down.",
        SECONDS, Query(c.queries.quantile(P99, connectors.LOOKUP_DURATION, ("connector", "kind")), "{{connector}} {{kind}}"),
        width=THIRD, none=NO_CONNECTOR,
    )  # fmt: skip


def outcomes(c: Context) -> Builder[Panel]:
    return lines(
        "Blocks by what became of them", "backpressure: not stored, as storage is behind. reuse_threshold: not stored, as not asked "
        "for often enough. Much backpressure: faster storage, or a higher threshold.",
        "suffix:/s", Query(c.queries.rate(connectors.BLOCKS, ("connector", "outcome")), "{{connector}} {{outcome}}"), width=THIRD,
        none=NO_CONNECTOR,
    )  # fmt: skip


def usage(c: Context) -> Builder[Panel]:
    return lines(
        "Host memory for KV in use", "Share of the blocks in host memory that cannot make room. Near 1 nothing more is stored: give "
        "it more memory.",
        PERCENT, Query(c.queries.max(connectors.USAGE, ("instance", "connector")), "{{instance}} {{connector}}"), most=1,
        width=THIRD, none=NO_CONNECTOR,
    )  # fmt: skip


def tiers(c: Context) -> Builder[Panel]:
    by = (*SHELF, "direction")
    return lines(
        "Tiers behind host memory", "Bytes per second to and from each tier. One that only ever takes in is no cache: see what is found there.",
        "Bps", Query(c.queries.rate(connectors.TIER_IO, by), f"{SHELF_NAME} {{{{direction}}}}"), width=THIRD, none=NO_CONNECTOR,
    )  # fmt: skip


def tier_speed(c: Context) -> Builder[Panel]:
    by = (*SHELF, "direction")
    one = ratio(c.queries.rate(connectors.TIER_IO, by), c.queries.rate(connectors.TIER_OPERATION_TIME, by))
    return lines(
        "Speed of a tier", "Bytes by the time that moving them took: what the device or the network behind the tier gives to one.",
        "Bps", Query(one, f"{SHELF_NAME} {{{{direction}}}}"), width=THIRD, none=NO_CONNECTOR,
    )  # fmt: skip


ROWS = (
    Row("KV transfer", (moved, speed, duration, size, failures), closed=True),
    Row("KV cache outside the GPU", (found, lookups, usage, outcomes, tiers, tier_speed), closed=True),
)
