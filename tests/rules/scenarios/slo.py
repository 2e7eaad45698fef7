"""Objectives."""

from tests.rules.fleet import MODEL, WHERE_SERVICE, engine, replica, series
from tests.rules.promtool import Fires, Scenario

NAME, BLIND = "VllmSloBudgetBurn", "VllmSloRequestsNotJudged"


def judged(good: str, bad: str, place: int = 0, *, model: str = "m", target: str = "0.99x9000") -> dict[str, str]:
    """Return the series of one replica with the SLO chat."""
    of = {**engine(place), "model_name": model}
    made = {
        series("vllm_slo_requests_total", of, slo="chat", outcome="good"): good,
        series("vllm_slo_requests_total", of, slo="chat", outcome="bad"): bad,
    }
    return {**made, series("vllm_slo_target_ratio", replica(place), slo="chat"): target} if target else made


def burns(
    long: str, short: str, factor: str, severity: str, part: str, *, model: str = "m", target: str = "99%"
) -> Fires:
    labels = {
        **MODEL,
        "model_name": model,
        "slo": "chat",
        "severity": severity,
        "long": long,
        "short": short,
        "factor": factor,
    }
    told = f"{part} of the requests to {model} in the last {long} missed the SLO chat (target: {target}){WHERE_SERVICE}"
    return Fires(labels, told)


def fast(part: str, **other: str) -> Fires:
    return burns("1h", "5m", "14.4", "critical", part, **other)


def slow(part: str) -> Fires:
    return burns("6h", "30m", "6", "critical", part)


SCENARIOS = (
    Scenario(NAME, "a fifth is bad: 20 times what 99% allows", judged("0+80x120", "0+20x120"), {
        "2m": [],  # it must hold for 2m, from the second sample on
        "5m": [fast("20%")],
        "14m": [fast("20%")],
        "20m": [fast("20%"), slow("20%")],
    }),
    Scenario(NAME, "7% are bad: the pair of 6h", judged("0+93x120", "0+7x120"), {"14m": [], "18m": [slow("7%")]}),
    Scenario(NAME, "4% are bad: the pair of a day, after an hour", judged("0+96x120", "0+4x120"), {
        "58m": [],
        "70m": [burns("1d", "2h", "3", "warning", "4%")],
    }),
    Scenario(NAME, "2% are bad: the pair of three days, after three hours", judged("0+98x300", "0+2x300"), {
        "178m": [],
        "190m": [burns("3d", "6h", "1", "warning", "2%")],
    }),
    Scenario(NAME, "half of what the target allows, for half a day", judged("0+199x720", "0+1x720"), {
        "1h": [], "6h": [], "12h": [],
    }),
    # 100 a minute, bad ones from minute 121 on: 9 of 60 minutes are bad at minute 130, more than 14.4%
    Scenario(NAME, "an outage after two good hours is paged in ten minutes, and each pair ends when its short window is good",
             judged("0+100x120 12000x30 12000+100x120", "0x120 0+100x30 3000x120"), {
        "120m": [],
        "127m": [],
        "132m": [fast("18.64%")],  # 1100 of 1100 + 4800
        "150m": [fast("49.15%"), slow("19.46%")],  # 2900 of 2900 + 3000, and of 2900 + 12000
        "158m": [slow("19.23%")],  # 3000 of 3000 + 12600
        "183m": [],
        "186m": [burns("1d", "2h", "3", "warning", "16.3%")],  # its short window is bad for longer: 3000 of 3000 + 15400
    }),
    Scenario(NAME, "a few requests at night, half of them bad: too few to wake anybody",
             judged("0 1 1 1 2 2 2 3 3 3 4 4 4x50", "0 0 1 1 1 2 2 2 3 3 3 4 4x50"), {"4m": [], "10m": [], "30m": [], "60m": []}),
    Scenario(NAME, "no target is shown", judged("0+80x120", "0+20x120", target=""), {"5m": [], "30m": []}),
    Scenario(NAME, "no traffic", judged("5000x120", "5000x120"), {"5m": [], "90m": []}),
    Scenario(NAME, "no series at all", {}, {"5m": [], "90m": []}),
    # 40 of 100 bad on one replica, none of 900 on the other: 4%, which is not paged
    Scenario(NAME, "one of two replicas, both engine 0, is bad: what counts is the service",
             judged("0+60x120", "0+40x120") | judged("0+900x120", "0x120", 1), {
        "20m": [],
        "70m": [burns("1d", "2h", "3", "warning", "4%")],
    }),
    # the label sets of bad and good differ: a division that does not add up finds no pair
    Scenario(NAME, "one replica has only bad ones, another only good ones",
             judged("0x120", "0+30x120") | judged("0+70x120", "0x120", 1), {"5m": [fast("30%")]}),
    Scenario(NAME, "two models of one job with targets of their own",
             judged("0+95x120", "0+5x120", model="lax", target="0.9x9000")
             | judged("0+95x120", "0+5x120", 1, model="strict", target="0.999x9000"), {
        "10m": [fast("5%", model="strict", target="99.9%")],
    }),
    Scenario(NAME, "all is bad under a target of 90%, which allows at most ten times as many",
             judged("0x120", "0+100x120", target="0.9x9000"), {"5m": [fast("100%", target="90%")]}),
    Scenario(NAME, "a replica is restarted: its counters begin anew",
             judged("0+100x20 0+100x100", "1000x20 0x100"), {"22m": [], "30m": [], "60m": []}),
    Scenario(NAME, "scaled to zero in the middle of an outage",
             judged("0x30 stale", "0+100x30 stale", target="0.99x30 stale"), {"20m": [fast("100%"), slow("100%")], "32m": []}),
    Scenario(NAME, "bursts of bad requests, each within a minute, far apart",
             judged("0+100x29 2900+100x29 5800+100x29", "0x29 50x29 100x29"), {
        "29m": [], "31m": [], "33m": [], "59m": [], "61m": [], "63m": [], "80m": [],
    }),
    Scenario(BLIND, "a tenth cannot be judged", {
        **judged("0+90x120", "0x120"),
        series("vllm_slo_excluded_total", engine(), slo="chat", reason="unknown"): "0+10x120",
    }, {
        "10m": [],
        "30m": [Fires(
            {**MODEL, "slo": "chat", "severity": "warning"},
            "10% of the requests to m in the last 1h could not be judged by the SLO chat, which is blind to them" + WHERE_SERVICE,
        )],
    }),
    Scenario(BLIND, "a tenth was cut off: that is no blindness", {
        **judged("0+90x120", "0x120"),
        series("vllm_slo_excluded_total", engine(), slo="chat", reason="unknown"): "0x120",
        series("vllm_slo_excluded_total", engine(), slo="chat", reason="abort"): "0+10x120",
    }, {"30m": [], "100m": []}),
    Scenario(BLIND, "8 of 16 in an hour: too few to tell", {
        **judged("0+1x8 8x100", "0x120"),
        series("vllm_slo_excluded_total", engine(), slo="chat", reason="unknown"): "0+1x8 8x100",
    }, {"30m": [], "50m": []}),
)  # fmt: skip
