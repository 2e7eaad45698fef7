"""The OpenTelemetry conventions for generative-AI servers (status: Development)."""

from vllm_vitals.catalog.metric import LONGEST, Histogram, Label, Scope
from vllm_vitals.step import Finished

FAILED = ("error",)
UNFINISHED = ("error", "abort")


def first_token(request: Finished) -> float | None:
    """Return the seconds from a request's arrival to its first token, rebuilt from its own times.

    The decode time runs from the first token to the last, and the duration ends at the last.
    """
    if request.duration is None or request.decode is None or not request.output_tokens:
        return None
    return request.duration - request.decode


GEN_AI_DURATION = Histogram(
    "gen_ai.server.request.duration", "s", "Time from a request's arrival to its last output.",
    of=Finished, scope=Scope.CONVENTION, buckets="gen_ai_request_duration", limit=LONGEST,
    read=lambda r: (
        None if r.duration is None else {"error" if r.reason in FAILED else "": r.duration}
    ),
    labels=(Label("error.type", ("",), help="`error` when the engine failed the request, else absent"),),
)  # fmt: skip
GEN_AI_FIRST_TOKEN = Histogram(
    "gen_ai.server.time_to_first_token", "s",
    "Time to the first token of a successful request, rebuilt at its end as duration minus decode time.",
    of=Finished, scope=Scope.CONVENTION, buckets="gen_ai_time_to_first_token", limit=LONGEST,
    read=lambda r: None if r.reason in UNFINISHED else first_token(r),
)  # fmt: skip
GEN_AI_PER_TOKEN = Histogram(
    "gen_ai.server.time_per_output_token", "s",
    "Mean time per output token after the first of a successful request.",
    of=Finished, scope=Scope.CONVENTION, buckets="gen_ai_time_per_output_token", limit=LONGEST,
    read=lambda r: None if r.reason in UNFINISHED else r.time_per_output_token, ceiling="most",
)  # fmt: skip

CONVENTIONS = (GEN_AI_DURATION, GEN_AI_FIRST_TOKEN, GEN_AI_PER_TOKEN)
