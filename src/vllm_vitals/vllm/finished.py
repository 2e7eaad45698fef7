"""vLLM's stats of finished requests to `Finished`: many at once, as they are a third of what there is to read of a step."""

from collections.abc import Sequence
from enum import Enum
from itertools import islice
from operator import le
from typing import Any

from vllm_vitals._util.labels import label
from vllm_vitals._util.pacing import checkpoint
from vllm_vitals.records.step import CLOCK_SLACK, Finished, Floats, Step
from vllm_vitals.vllm.fields import Fields, Table

NUMBERS = (
    "e2e_latency", "queued_time", "prefill_time", "decode_time", "inference_time", "mean_time_per_output_token",
)  # fmt: skip
COUNTS = ("num_prompt_tokens", "num_generation_tokens", "num_cached_tokens", "max_tokens_param", "num_preemptions")
LONGEST_ID = 256
"""Characters of a request's id that are kept: clients may choose it."""

Row = Sequence[Any]


class FinishedReader:
    """Reads the finished requests of one `AsyncLLM`."""

    def __init__(self, fields: Fields, *, pooling: bool) -> None:
        """`pooling`: requests end without a token by design."""
        self._table = Table(fields, NUMBERS, COUNTS, ("finish_reason", "request_id"))
        self._pooling = pooling
        self._names: dict[type, dict[Any, str]] = {}
        """Names of the members of enums."""

    def read(self, ended: Sequence[tuple[Step, list[Any]]]) -> None:
        """Put into each step what ended in it."""
        rows = self._table.read([request for _, requests in ended for request in requests])
        checkpoint()
        if (usual := self._usual(rows, [step.time for step, requests in ended for _ in requests])) is not None:
            made = iter(usual)
            for step, requests in ended:
                step.finished = tuple(islice(made, len(requests)))
            return
        unusual = iter(rows)
        for step, requests in ended:
            step.finished = tuple([self._finished(next(unusual), step) for _ in requests])
            checkpoint()

    def _usual(self, rows: Sequence[Row], times: Sequence[float]) -> list[Finished] | None:
        """Return requests of which each ran its course and all is told, `None` if one may not have."""
        try:
            columns = self._table.row(zip(*rows, strict=True))
            ids = columns.request_id
            timed = all(map(le, columns.inference_time, columns.e2e_latency))
            named = set(map(type, ids)) == {str} and max(map(len, ids)) <= LONGEST_ID
            if (
                timed
                and named
                and min(columns.num_generation_tokens) > 1
                and min(columns.num_cached_tokens) >= 0
                and min(columns.max_tokens_param) > 0
            ):
                # `Finished` has the same order.
                *numbers, reasons, _ = columns
                return list(map(Finished, self._reasons(reasons), times, *numbers, ids))
        except (TypeError, ValueError):  # there is a `None`, or nothing at all
            pass
        return None

    def _reasons(self, values: Sequence[Any]) -> Sequence[str]:
        kind, *others = set(map(type, values))
        if others or not issubclass(kind, Enum):
            return list(map(finish_reason, values))
        names = self._names.setdefault(kind, {})
        try:
            return list(map(names.__getitem__, values))
        except KeyError:
            names.update((member, finish_reason(member)) for member in kind)
            return list(map(finish_reason, values))

    def _finished(self, row: Row, step: Step) -> Finished:
        one = self._table.row(row)
        duration, inference, tokens = one.e2e_latency, one.inference_time, one.num_generation_tokens
        # Without the engine's time stamps all milestones are 0, which is the boot of the host.
        unstamped = inference is not None and duration is not None and inference > duration + CLOCK_SLACK
        # A negative number of cached tokens: the request was never scheduled.
        cached = None if one.num_cached_tokens is None else max(one.num_cached_tokens, 0)
        request = Finished(
            finish_reason(one.finish_reason),
            time=step.time,
            duration=duration,
            queue=None if unstamped else one.queued_time,
            prefill=one.prefill_time,
            decode=one.decode_time,
            inference=inference,
            # One token has no time between tokens.
            time_per_output_token=None if tokens is None or tokens < 2 else one.mean_time_per_output_token,  # noqa: PLR2004
            input_tokens=one.num_prompt_tokens,
            output_tokens=tokens,
            cached_tokens=cached,
            max_tokens=one.max_tokens_param or None,
            preemptions=one.num_preemptions,
            request_id=one.request_id[:LONGEST_ID] if isinstance(one.request_id, str) else None,
        )
        if tokens == 0 and not self._pooling:
            _forget_tokenless(request, step.first_token_latencies)
        return request


def _forget_tokenless(request: Finished, first_tokens: Floats | None) -> None:
    """Drop the latencies that vLLM reports of a request that was cut off before its first token.

    Its first-token time is its duration, the very same number; its prefill and inference times run from a
    milestone it never reached, that is from the boot of the host.
    """
    if first_tokens and request.duration is not None and request.duration in first_tokens:
        first_tokens.remove(request.duration)
    request.prefill = request.decode = request.inference = None
    if request.queue is not None and request.duration is not None and not 0 <= request.queue <= request.duration:
        request.queue = None


def finish_reason(value: Any) -> str:
    """Return a finish reason's label: an enum member's name, whatever members a release has."""
    if isinstance(value, Enum):
        return value._name_.lower()  # `name` is the same by way of a slow descriptor
    return label(value)
