"""Service level objectives (SLOs): which requests met theirs, and what the others waited for."""

from typing import Any

from vllm_vitals._util.labels import UNKNOWN
from vllm_vitals.catalog.metric import Counter, Gauge, Label, Scope
from vllm_vitals.catalog.requests import PHASES

OBJECTIVES = ("ttft", "tpot", "e2e")
MAX_SLOS = 32
"""Each makes up to 17 series for every engine."""

SLO = Label("slo", cap=MAX_SLOS, help="the name that the setting `slos` gives it")
OBJECTIVE = Label("objective", OBJECTIVES, help="ttft: time to first token. tpot: time per output token. e2e: duration")
OUTCOME = Label("outcome", ("good", "bad"), help="good: every limit was met. bad: one was not, or the request failed")

REQUESTS: Counter[Any] = Counter(
    "vllm.slo.requests", "{request}", "Finished requests that an SLO judged.", labels=(SLO, OUTCOME)
)
VIOLATIONS: Counter[Any] = Counter(
    "vllm.slo.violations", "{request}",
    "Limits that judged requests missed, by the phase that went most beyond what it usually takes in good requests of as "
    "many tokens. A request that misses two limits counts in both.",
    labels=(SLO, OBJECTIVE,
            Label("phase", (*PHASES, UNKNOWN), help="ttft: queue, prefill or frontend. tpot: decode. e2e: any. "
                                                    "unknown: vLLM did not say how the time was spent, or on how many tokens")),
)  # fmt: skip
TOKENS: Counter[Any] = Counter(
    "vllm.slo.tokens", "{token}", "Tokens generated for the requests that an SLO judged; those of good ones are its goodput.",
    labels=(SLO, OUTCOME),
)  # fmt: skip
EXCLUDED: Counter[Any] = Counter(
    "vllm.slo.excluded", "{request}", "Finished requests that an SLO covers and did not judge.",
    labels=(SLO, Label("reason", ("abort", "error", UNKNOWN),
                       help="abort, error: the SLO ignores these. unknown: a time that it limits is not known")),
)  # fmt: skip
TARGET: Gauge[Any] = Gauge(
    "vllm.slo.target", "1", "Share of requests that shall be good.", scope=Scope.PROCESS, labels=(SLO,)
)
THRESHOLD: Gauge[Any] = Gauge(
    "vllm.slo.threshold", "s", "What a request may take at most.", scope=Scope.PROCESS, labels=(SLO, OBJECTIVE)
)

COUNTERS = (REQUESTS, VIOLATIONS, TOKENS, EXCLUDED)
SLOS = (*COUNTERS, TARGET, THRESHOLD)
