"""The OpenTelemetry conventions for generative-AI servers (status: Development)."""

import numpy as np

from vllm_vitals.catalog.metric import MAX_LATENCY_SECONDS, Group, Histogram, Label, Scope
from vllm_vitals.records.request_batch import Floats, Requests
from vllm_vitals.records.step import Finished

FAILED = ("error",)
UNFINISHED = ("error", "abort")


def first_token(requests: Requests) -> Floats:
    """Return the seconds from a request's arrival to its first token, computed from its other times.

    Decode runs from the first token to the last, and the duration ends at the last token.
    """
    return np.where(requests.output_tokens > 0, requests.duration - requests.decode, np.nan)


def duration_by_error(requests: Requests) -> dict[str, Floats]:
    """Return the durations of requests by their `error.type`."""
    failed = requests.ended(*FAILED)
    if not failed.any():
        return {"": requests.duration}
    return {"": np.where(failed, np.nan, requests.duration), "error": np.where(failed, requests.duration, np.nan)}


def of_successful(requests: Requests, values: Floats) -> Floats:
    """Return the values, with NaN for requests that did not succeed."""
    return np.where(requests.ended(*UNFINISHED), np.nan, values)


GEN_AI = Group(
    "conventions",
    "Conventions",
    "The metrics of the OpenTelemetry conventions for generative-AI servers (status: Development). The setting "
    "`gen_ai.enabled=false` turns them off.",
)

GEN_AI_DURATION = GEN_AI.add(
    Histogram(
        "gen_ai.server.request.duration",
        "s",
        "Time from a request's arrival to its last output.",
        record=Finished,
        scope=Scope.CONVENTION,
        buckets="gen_ai_request_duration",
        limit=MAX_LATENCY_SECONDS,
        read=duration_by_error,
        labels=(Label("error.type", ("", "error"), help="`error` if the engine failed the request, else absent"),),
    )
)
GEN_AI_FIRST_TOKEN = GEN_AI.add(
    Histogram(
        "gen_ai.server.time_to_first_token",
        "s",
        "Time to the first token of a successful request, computed at its end as duration minus decode time.",
        record=Finished,
        scope=Scope.CONVENTION,
        buckets="gen_ai_time_to_first_token",
        limit=MAX_LATENCY_SECONDS,
        read=lambda r: of_successful(r, first_token(r)),
    )
)
GEN_AI_PER_TOKEN = GEN_AI.add(
    Histogram(
        "gen_ai.server.time_per_output_token",
        "s",
        "Mean time per output token after the first, of a successful request.",
        record=Finished,
        scope=Scope.CONVENTION,
        buckets="gen_ai_time_per_output_token",
        limit=MAX_LATENCY_SECONDS,
        read=lambda r: of_successful(r, r.time_per_output_token),
        max_from_record="max_phase",
    )
)
