"""Load."""

from tests.rules.fleet import MODEL, WHERE_SERVICE, engine, healthy, series, where
from tests.rules.promtool import Fires, Scenario

QUEUE, FULL, SOON = "VllmQueueGrowing", "VllmSaturated", "VllmKvCacheFullSoon"
PREEMPTS, UNEVEN, REJECTS, CACHE = (
    "VllmPreemptionStorm",
    "VllmRankImbalance",
    "VllmAdmissionRejections",
    "VllmPrefixCacheCollapse",
)
WARNING = {"severity": "warning"}


def uneven(place: int, rank: int, requests: str) -> Fires:
    told = f"Engine {rank} of m had {requests} requests on average over 15m, more than 1.5 times the mean of all engines of the model"
    return Fires({**engine(place, rank), **WARNING}, told + where(place))


def rejected(reason: str, values: str) -> dict[str, str]:
    labels = {**{name: value for name, value in engine().items() if name != "engine"}, "reason": reason}
    return {series("vllm_requests_rejected_total", labels): values}


def prefix(queries: str, hits: str, place: int = 0, tier: str = "local") -> dict[str, str]:
    of = engine(place)
    return {
        series("vllm_prefix_cache_queried_tokens_total", of, tier=tier): queries,
        series("vllm_prefix_cache_hit_tokens_total", of, tier=tier): hits,
    }


SCENARIOS = (
    Scenario(QUEUE, "five more each minute", healthy(0) | healthy(1, capacity="1+5x60"), {
        "4m": [],
        "12m": [Fires({**engine(1), **WARNING}, "61 requests wait for room in engine 0 of m, and ever more for 10m" + where(1))],
    }),
    Scenario(QUEUE, "long, but no longer than before", healthy(capacity="50 52 49 51 50 48 52 50 49 51 50x60"), {"12m": [], "30m": []}),
    Scenario(QUEUE, "a burst that is soon taken in", healthy(capacity="0x5 100 60 20 0x60"), {"6m": [], "8m": [], "12m": []}),
    Scenario(QUEUE, "only deferred requests become more", healthy(deferred="1+5x60"), {"12m": [], "30m": []}),
    Scenario(QUEUE, "it shrinks again", healthy(capacity="1+10x9 100-10x9 0x60"), {"20m": [], "30m": []}),
    Scenario(FULL, "both engines for half an hour", healthy(0, saturation="1x60") | healthy(1, saturation="0.98x60"), {
        "14m": [],
        "30m": [Fires({**MODEL, **WARNING}, f"The engines of m were 99% saturated over 15m{WHERE_SERVICE}")],
    }),
    Scenario(FULL, "one of two engines", healthy(0, saturation="1x60") | healthy(1, saturation="0.5x60"), {"30m": []}),
    Scenario(FULL, "the one that is awake",
             healthy(0, saturation="1x60") | healthy(1, saturation="0x60", awake="0x60", offloaded="1x60"), {
        "30m": [Fires({**MODEL, **WARNING}, f"The engines of m were 100% saturated over 15m{WHERE_SERVICE}")],
    }),
    Scenario(FULL, "full for its five minutes, and scaled to zero: the mean of a window lasts on",
             healthy(saturation="1x5 stale", awake="1x5 stale"), {"14m": [], "16m": [], "20m": []}),
    Scenario(FULL, "busy, with room", healthy(saturation="0.9x60"), {"30m": []}),
    Scenario(FULL, "up and down", healthy(saturation="1 0.3 1 0.3 1 0.3 1 0.3 1 0.3 1 0.3 1 0.3 1 0.3 1 0.3 1 0.3 1 0.3 1"), {
        "15m": [], "20m": [],
    }),
    # the forecast is absent at every other sample, as it is with noise
    Scenario(SOON, "it fills, and the forecast comes and goes", {
        **healthy(usage="0.75 0.78 0.8 0.82 0.84 0.86 0.88 0.9 0.92"),
        series("vllm_kv_cache_time_to_full_seconds", engine()): "280 260 240 220 200 180 160 120 90",
    }, {
        "1m": [],
        "5m": [Fires({**engine(), **WARNING},
                     "The KV cache of engine 0 of m is full in 3m 20s; then requests wait or are preempted" + where())],
    }),
    Scenario(SOON, "it fills from nothing, as it does when load begins", {
        **healthy(usage="0.1 0.2 0.3 0.4 0.5 0.6x60"),
        series("vllm_kv_cache_time_to_full_seconds", engine()): "100 100 100 100 100 stale",
    }, {"3m": [], "5m": [], "8m": []}),
    Scenario(SOON, "it fills slowly", {
        **healthy(usage="0.8+0.0001x60"), series("vllm_kv_cache_time_to_full_seconds", engine()): "2000x60",
    }, {"5m": [], "30m": []}),
    Scenario(SOON, "full and steady", healthy(usage="0.99x60"), {"5m": [], "30m": []}),
    # 30 preemptions, 60 requests a minute: half
    Scenario(PREEMPTS, "half of the requests", healthy(preempted="0+30x60", abort="0x60"), {
        "3m": [],
        "15m": [Fires({**engine(), **WARNING}, "Engine 0 of m preempts 0.50 requests per second, which are computed anew" + where())],
    }),
    Scenario(PREEMPTS, "nothing finishes any more", healthy(preempted="0+30x60", stop="500x60", abort="5x60"), {
        "15m": [Fires({**engine(), **WARNING}, "Engine 0 of m preempts 0.50 requests per second, which are computed anew" + where())],
    }),
    Scenario(PREEMPTS, "a tenth of the requests", healthy(preempted="0+6x60"), {"15m": [], "30m": []}),
    Scenario(PREEMPTS, "8 of 8 requests, once", healthy(preempted="0x5 0+1x8 8x60", stop="0x5 0+1x8 8x60", abort="0x60"), {"15m": []}),
    Scenario(UNEVEN, "three ranks of one process and a replica: one has nearly all",
             healthy(0, 0, running="40x60") | healthy(0, 1, running="2x60") | healthy(0, 2, running="2x60") | healthy(1, 0, running="4x60"), {
        "10m": [], "30m": [uneven(0, 0, "40")],
    }),
    Scenario(UNEVEN, "what waits counts too", healthy(0, running="8x60", capacity="20x60") | healthy(1, running="8x60"), {
        "30m": [uneven(0, 0, "28")],
    }),
    Scenario(UNEVEN, "even", healthy(0, running="20x60") | healthy(1, running="18x60"), {"30m": []}),
    Scenario(UNEVEN, "uneven, with little to do", healthy(0, running="3x60") | healthy(1, running="0x60"), {"30m": []}),
    Scenario(UNEVEN, "the other one is asleep",
             healthy(0, running="40x60") | healthy(1, running="0x60", awake="0x60", offloaded="1x60"), {"30m": []}),
    Scenario(UNEVEN, "a replica that had nearly all is gone", healthy(0, running="2x60")
             | healthy(1, running="40x3 stale", capacity="0x3 stale", deferred="0x3 stale"), {"15m": [], "17m": [], "18m": []}),
    Scenario(UNEVEN, "the only one", healthy(0, running="40x60"), {"30m": []}),
    # 10 rejected, 60 + 2 finished a minute: 10 of 72
    Scenario(REJECTS, "a seventh", healthy() | rejected("max_num_queued_reqs", "0+10x60"), {
        "2m": [],
        "20m": [Fires({**MODEL, **WARNING}, f"13.89% of the requests to m in the last 10m were turned away with status 503{WHERE_SERVICE}")],
    }),
    Scenario(REJECTS, "all, by both limits", healthy(stop="9x60", abort="9x60")
             | rejected("max_num_queued_reqs", "0+5x60") | rejected("max_num_queued_tokens", "0+5x60"), {
        "20m": [Fires({**MODEL, **WARNING}, f"100% of the requests to m in the last 10m were turned away with status 503{WHERE_SERVICE}")],
    }),
    Scenario(REJECTS, "one in a thousand", healthy(stop="0+2000x60") | rejected("max_num_queued_reqs", "0+2x60"), {"20m": []}),
    Scenario(REJECTS, "a burst of 8", healthy(stop="0x60") | rejected("max_num_queued_reqs", "0x5 8x60"), {"8m": [], "20m": []}),
    Scenario(REJECTS, "none for an hour", healthy() | rejected("max_num_queued_reqs", "500x60"), {"20m": []}),
    # sampled every 3 minutes: 30000 tokens each; 80% for 20 h, then 10%
    Scenario(CACHE, "from 80% to 10%", prefix("0+30000x500", "0+24000x400 9600000+3000x100"), {
        "20h": [],
        "21h": [Fires({**MODEL, "tier": "local", **WARNING},
                      "The local prefix cache of m had 10% of the tokens looked up in the last 30m, less than 50% of what is usual"
                      + WHERE_SERVICE)],
    }, interval="3m"),
    # a counter that has never counted has no series
    Scenario(CACHE, "the external tier has had nothing since a restart",
             prefix("0+30000x399 0+30000x100", "0+24000x399 stale", tier="external"), {
        "20h": [],
        "21h": [Fires({**MODEL, "tier": "external", **WARNING},
                      "The external prefix cache of m had 0% of the tokens looked up in the last 30m, less than 50% of what is usual"
                      + WHERE_SERVICE)],
    }, interval="3m"),
    Scenario(CACHE, "one of ten replicas starts cold",
             prefix("0+270000x500", "0+216000x500") | prefix("_x400 0+30000x100", "_x400 0+0x100", 1), {"21h": []}, interval="3m"),
    Scenario(CACHE, "it was never good", prefix("0+30000x500", "0+3000x400 1200000+300x100"), {"21h": []}, interval="3m"),
    Scenario(CACHE, "hardly any traffic", prefix("0+300x500", "0+240x400 96000+0x100"), {"21h": []}, interval="3m"),
)  # fmt: skip
