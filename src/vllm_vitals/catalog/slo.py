"""Service level objectives (SLOs): good and bad requests, and the phases that missed limits are attributed to."""

from typing import Any

from vllm_vitals._util.labels import UNKNOWN
from vllm_vitals.catalog.metric import Counter, Gauge, Group, Label, Scope
from vllm_vitals.catalog.requests import PHASES

OBJECTIVES = ("ttft", "tpot", "e2e")
MAX_SLOS = 32
"""Each SLO makes up to 17 series per engine."""

SLO = Label("slo", cap=MAX_SLOS, help="name of the SLO in the setting `slos`")
OBJECTIVE = Label("objective", OBJECTIVES, help="ttft: time to first token. tpot: time per output token. e2e: duration")
OUTCOME = Label("outcome", ("good", "bad"), help="good: all limits met. bad: a limit missed, or the request failed")

SLOS = Group("slo", "SLOs")

REQUESTS: Counter[Any] = SLOS.add(
    Counter(
        "vllm.slo.requests", "{request}", "Finished requests that an SLO judged, by outcome.", labels=(SLO, OUTCOME)
    )
)
VIOLATIONS: Counter[Any] = SLOS.add(
    Counter(
        "vllm.slo.violations",
        "{request}",
        "Limits that judged requests missed, by the phase that exceeded its usual length most, compared with good "
        "requests of the same size. A request that misses two limits counts under both.",
        labels=(
            SLO,
            OBJECTIVE,
            Label(
                "phase",
                (*PHASES, UNKNOWN),
                help="ttft: queue, prefill or frontend. tpot: decode. e2e: any. unknown: vLLM did not report the "
                "phases or the tokens of the request",
            ),
        ),
    )
)
TOKENS: Counter[Any] = SLOS.add(
    Counter(
        "vllm.slo.tokens",
        "{token}",
        "Generated tokens of the requests that an SLO judged. Those of good requests are the goodput.",
        labels=(SLO, OUTCOME),
    )
)
EXCLUDED: Counter[Any] = SLOS.add(
    Counter(
        "vllm.slo.excluded",
        "{request}",
        "Finished requests that an SLO covers but did not judge, by reason.",
        labels=(
            SLO,
            Label(
                "reason",
                ("abort", "error", UNKNOWN),
                help="abort, error: the SLO ignores these. unknown: a limited time is unknown",
            ),
        ),
    )
)
TARGET: Gauge[Any] = SLOS.add(
    Gauge("vllm.slo.target", "1", "Target share of good requests.", scope=Scope.PROCESS, labels=(SLO,))
)
THRESHOLD: Gauge[Any] = SLOS.add(
    Gauge("vllm.slo.threshold", "s", "Time limit of an objective.", scope=Scope.PROCESS, labels=(SLO, OBJECTIVE))
)

COUNTERS = (REQUESTS, VIOLATIONS, TOKENS, EXCLUDED)
