"""Engines."""

from tests.rules.fleet import MODEL, WHERE_SERVICE, engine, healthy, replica, series, where
from tests.rules.promtool import Fires, Scenario

STALLED, STUCK, GONE = "VllmEngineStalled", "VllmEngineNoProgress", "VllmEngineGone"
ASLEEP, NEEDED = "VllmEngineAsleep", "VllmEngineAsleepUnderLoad"
ERRORS, CORRUPTED = "VllmRequestErrors", "VllmRequestsCorrupted"
NO_STEPS = {"age": "0.1x4 0+60x60", "tokens": "0+6000x4 24000x60"}
"""From minute 5 on there is no step."""
GAUGES_GO = {
    "running": "8x6 stale",
    "capacity": "0x6 stale",
    "deferred": "0x6 stale",
    "saturation": "0.4x6 stale",
    "usage": "0.3x6 stale",
}
"""What is known of a moment goes away a minute later."""
IDLE = {"running": "0x60", "tokens": "500x60", "stop": "9x60", "abort": "0x60"}


def stalled(place: int, seconds: str) -> Fires:
    labels = {**engine(place), "severity": "critical"}
    return Fires(labels, f"Engine 0 of m has requests and has made no step for {seconds}{where(place)}")


def gone(place: int = 0) -> Fires:
    labels = {**engine(place), "severity": "critical"}
    return Fires(
        labels, "Engine 0 of m is gone: its processes have ended, or its endpoint does not answer" + where(place)
    )


SCENARIOS = (
    Scenario(STALLED, "it falls silent with requests; its gauges go", healthy(**NO_STEPS, **GAUGES_GO), {
        "6m": [], "8m": [], "9m": [stalled(0, "4m 0s")], "40m": [stalled(0, "35m 0s")],
    }),
    Scenario(STALLED, "it falls silent with requests; its gauges stand (stale_after is 0)", healthy(**NO_STEPS), {
        "9m": [stalled(0, "4m 0s")],
    }),
    Scenario(STALLED, "only waiting requests are left", healthy(**{**NO_STEPS, "running": "0x60", "deferred": "3x60"}), {
        "9m": [stalled(0, "4m 0s")],
    }),
    Scenario(STALLED, "one of two replicas, both engine 0", healthy(0) | healthy(1, **NO_STEPS, **GAUGES_GO), {
        "9m": [stalled(1, "4m 0s")],
    }),
    Scenario(STALLED, "idle", healthy(**IDLE, age="0+60x60"), {"9m": [], "50m": []}),
    Scenario(STALLED, "put to sleep with requests",
             healthy(**NO_STEPS, **GAUGES_GO, awake="1x4 0x60", paused="0x4 1x60"), {"9m": [], "50m": []}),
    Scenario(STALLED, "its process ended and the sidecar knows", healthy(**NO_STEPS, **GAUGES_GO, up="1x4 0x60"), {"9m": [], "50m": []}),
    Scenario(STALLED, "one long step of 100 s", healthy(age="0.1x4 0.1 60 100 0.1x60"), {"6m": [], "7m": [], "8m": [], "9m": []}),
    Scenario(STALLED, "it is restarted: its age begins anew", healthy(**IDLE, age="0+60x20 0+60x20"), {"10m": [], "25m": []}),
    Scenario(STUCK, "deferred requests never get anywhere", healthy(running="0x60", deferred="5x60", tokens="0+6000x9 60000x60"), {
        "12m": [],
        "25m": [Fires({**engine(), "severity": "critical"},
                      "Engine 0 of m makes steps and has worked on no token for 5m, with 5 requests" + where())],
    }),
    Scenario(STUCK, "it works", healthy(), {"10m": [], "30m": []}),
    Scenario(STUCK, "idle", healthy(**IDLE, age="0+60x60"), {"10m": [], "30m": []}),
    Scenario(STUCK, "one prompt of four minutes", healthy(running="0x5 1x4 0x60", tokens="500x8 9000x60"), {
        "6m": [], "9m": [], "12m": [],
    }),
    Scenario(GONE, "all serving processes ended and the sidecar knows", healthy(up="1x4 0x60"), {"8m": [], "12m": [gone()]}),
    Scenario(GONE, "an endpoint that answered does not",
             healthy(0) | healthy(1, **dict.fromkeys(healthy_names := ("running", "capacity", "deferred", "age", "up", "awake"), "1x4 stale"),
                                  target_up="1x4 0x60"), {
        "8m": [], "12m": [gone(1)], "50m": [gone(1)],
    }),
    Scenario(GONE, "it is back after three minutes", healthy(up="1x4 stale _ _ 1x60", target_up="1x4 0 0 0 1x60"), {
        "6m": [], "8m": [], "12m": [],
    }),
    Scenario(GONE, "scaled to zero", healthy(**dict.fromkeys(healthy_names, "1x4 stale"), target_up="1x4 stale"), {"8m": [], "30m": []}),
    Scenario(GONE, "a sidecar goes on telling of one that nobody starts again", healthy(up="1x4 0x600"), {
        "12m": [gone()], "5h": [gone()], "6h20m": [], "9h": [],
    }),
    Scenario(GONE, "a target that never was ours is down", {**healthy(), series("up", replica(7)): "0x60"}, {"12m": [], "50m": []}),
    Scenario(ASLEEP, "for more than an hour", healthy(**IDLE, awake="1x4 0x100", offloaded="0x4 1x100", age="0+60x100"), {
        "30m": [], "60m": [],
        "70m": [Fires({**engine(), "state": "weights_offloaded", "severity": "info"},
                      "Engine 0 of m is asleep (weights_offloaded) and answers nobody" + where())],
    }),
    Scenario(ASLEEP, "for half an hour, twice", healthy(**IDLE, awake="0x30 1x5 0x30 1x60", offloaded="1x30 0x5 1x30 0x60"), {
        "30m": [], "62m": [], "90m": [],
    }),
    Scenario(NEEDED, "the other replica is saturated",
             healthy(0, saturation="0.98x60") | healthy(1, **IDLE, awake="0x60", offloaded="1x60", saturation="0x60"), {
        "3m": [],
        "8m": [Fires({**engine(1), "severity": "warning"},
                     "Engine 0 of m is asleep, and those awake are more than 90% saturated" + where(1))],
    }),
    Scenario(NEEDED, "the other replica has room",
             healthy(0) | healthy(1, **IDLE, awake="0x60", offloaded="1x60", saturation="0x60"), {"8m": [], "30m": []}),
    Scenario(NEEDED, "the other replica was saturated for a moment, and is no more",
             healthy(0, saturation="1x2 stale") | healthy(1, **IDLE, awake="0x60", offloaded="1x60", saturation="0x60"), {
        "6m": [], "7m": [], "8m": [],
    }),
    Scenario(NEEDED, "all are asleep", healthy(0, **IDLE, awake="0x60", paused="1x60", saturation="0.98x60"), {"8m": [], "30m": []}),
    # 0 of 60+2 fail on one replica, 6 of 66+2 on the other: 6 of 130 in all
    Scenario(ERRORS, "one replica fails a tenth, the other none: the label sets differ",
             healthy(0, error="") | healthy(1, error="0+6x60"), {
        "1m": [],
        "10m": [Fires({**MODEL, "severity": "critical"}, f"4.615% of the requests to m in the last 10m failed in the engine{WHERE_SERVICE}")],
    }),
    Scenario(ERRORS, "many are cut off, none fails", healthy(abort="0+60x60"), {"10m": [], "30m": []}),
    Scenario(ERRORS, "4 of 8 fail, all night", healthy(stop="0 1 2 3 4x60", abort="0x60", error="0 1 2 3 4x60"), {
        "5m": [], "10m": [], "30m": [],
    }),
    Scenario(ERRORS, "one in a thousand fails", healthy(stop="0+999x60", error="0+1x60"), {"10m": [], "30m": []}),
    Scenario(ERRORS, "idle, with errors long ago", healthy(**IDLE, error="50x60"), {"10m": [], "30m": []}),
    Scenario(CORRUPTED, "NaNs in the logits of a request a minute", {
        **healthy(), series("vllm_requests_corrupted_total", engine()): "0x4 0+1x60",
    }, {
        "4m": [],
        "30m": [Fires({**engine(), "severity": "critical"}, "Engine 0 of m had NaNs in the logits of 10 requests in the last 10m" + where())],
    }),
    Scenario(CORRUPTED, "some an hour ago", {**healthy(), series("vllm_requests_corrupted_total", engine()): "0+1x5 5x60"}, {"30m": []}),
)  # fmt: skip
