"""vLLM's stats in MessagePack: written as they are where they were made, read where there is time for it.

Writing an object's fields down costs a third of reading them. Of a field nothing is expected here but that a list of
objects is one; what is in it is judged by the reader.
"""

import sys
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from msgspec import Raw, ValidationError, defstruct
from msgspec.msgpack import Decoder, Encoder

from vllm_vitals.ingest.step_queue import Call, Written
from vllm_vitals.records.step import Step, Unread
from vllm_vitals.vllm import finished
from vllm_vitals.vllm.folded import fold
from vllm_vitals.vllm.reader import (
    LATENCIES,
    LISTS,
    LOOKUPS,
    OFTEN,
    OUTPUTS,
    PROMPT,
    QUEUES,
    SELDOM,
    WATERMARKS,
    Reader,
)  # fmt: skip


def _kind(name: str, *fields: str, **typed: Any) -> Any:
    """Make a class of objects that have any of these fields, `None` for one that was not told."""
    plain = [(field, Any, None) for field in fields if field not in typed]
    return defstruct(name, [*plain, *((field, kind, None) for field, kind in typed.items())])


_Lookups = _kind("CacheStats", *LOOKUPS, "hits_by_source")
_Event: Any = _kind("KVCacheEvictionEvent", "lifetime_seconds", "idle_seconds", "reuse_gaps_seconds")
_Speculation = _kind("SpecDecodingStats", "num_drafts", "num_draft_tokens", "num_accepted_tokens_per_pos")
_Graph = _kind("CUDAGraphStat", "num_padded_tokens", "num_unpadded_tokens")
_Perf = _kind("PerfStats", "num_flops_per_gpu", "num_read_bytes_per_gpu", "num_write_bytes_per_gpu")
_Details = _kind("IterationDetails", "is_dummy", "elapsed_ms", "num_ctx_tokens", "num_generation_tokens")
_Request: Any = _kind("FinishedRequestStats", *finished.NUMBERS, *finished.COUNTS, "finish_reason", "request_id")
_Scheduler = _kind(
    "SchedulerStats", "kv_cache_usage", *QUEUES, *OFTEN, *SELDOM,
    prefix_cache_stats=_Lookups | None, connector_prefix_cache_stats=_Lookups | None,
    spec_decoding_stats=_Speculation | None, kv_cache_eviction_events=list[_Event] | None,
    cudagraph_stats=_Graph | None, perf_stats=_Perf | None, iteration_details=_Details | None,
)  # fmt: skip
_Iteration = _kind(
    "IterationStats", "iteration_timestamp", *OUTPUTS, *WATERMARKS, *LISTS, "num_prompt_tokens",
    **{LATENCIES: Raw}, prompt_token_stats=_kind("PromptTokenStats", *PROMPT) | None,
    finished_requests=list[_Request] | None,
)  # fmt: skip


_Told: Any = defstruct(
    "Told",
    [
        ("engine", Any),
        ("scheduler", _Scheduler | None),
        ("iteration", _Iteration | None),
        ("multimodal", _Lookups | None),
    ],
    array_like=True,
)


OBJECTS = frozenset({
    "prefix_cache_stats", "connector_prefix_cache_stats", "spec_decoding_stats", "kv_cache_eviction_events",
    "cudagraph_stats", "perf_stats", "iteration_details", "prompt_token_stats", "finished_requests",
})  # fmt: skip
"""The fields above that hold objects, or lists of them."""


def _fields(value: Any) -> dict[str, Any]:
    """Return the fields of an object that is no dataclass.

    Raises:
        TypeError: when it has none: what it does instead shows when it is read.
    """
    fields: dict[str, Any] = vars(value)
    if not fields:
        raise TypeError(f"no fields: {type(value).__name__}")
    return {**fields, LATENCIES: fold(fields[LATENCIES])} if LATENCIES in fields else fields


_ENCODER = Encoder(enc_hook=_fields)
_DECODER: Decoder[Any] = Decoder(_Told)
_ANYTHING: Decoder[Any] = Decoder()


def write(call: Call) -> bytes:
    """Return what vLLM told in a call of `record()`, all but the time.

    Raises:
        BaseException: when something in it cannot be written down.
    """
    _, scheduler, iteration, multimodal, engine = call
    return _ENCODER.encode((engine, scheduler, iteration, multimodal))


def recall(content: bytes, clock: float, reasons: Mapping[Any, str]) -> Call:
    """Return the call of `record()` that was written down; `reasons`: finish reasons by number.

    Raises:
        MsgspecError: when it is none.
        ValueError, TypeError, RecursionError: likewise.
    """
    try:
        told = _DECODER.decode(content)
        found = told.engine, told.scheduler, told.iteration, told.multimodal
    except ValidationError:  # something is not what it used to be: the reader knows how to bear it
        engine, *objects = _ANYTHING.decode(content)
        found = engine, *map(_object, objects)
    engine, scheduler, iteration, multimodal = found
    for request in _listed(getattr(iteration, "finished_requests", None)):
        reason = getattr(request, "finish_reason", None)
        if type(reason) is int and reason in reasons:
            request.finish_reason = reasons[reason]
    return clock, scheduler, iteration, multimodal, engine


def _object(value: Any) -> Any:
    if isinstance(value, dict):
        fields = {str(name): _object(each) if name in OBJECTS else each for name, each in value.items()}
        return SimpleNamespace(**fields)
    return [_object(each) for each in value] if isinstance(value, list) else value


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


class Bearer:
    """Hands on what one `AsyncLLM` told; what could not be written down is read."""

    def __init__(self, tap: int, reader: Reader) -> None:
        """`tap`: number of the `AsyncLLM`."""
        self._tap = tap
        self._reader = reader

    def bear(self, calls: list[Call | Written], epoch: float) -> list[Unread | Step]:
        """Return the records of calls of `record()`, oldest first. See `Reader.read`, which takes the same."""
        records: list[Unread | Step] = []
        for call in calls:
            if len(call) == 2:  # noqa: PLR2004 - it is written down
                records.append(Unread(self._tap, *call))
            else:
                records += self._reader.read([call], epoch)
        calls.clear()
        return records


def finish_reasons() -> dict[int, str]:
    """Return the names of vLLM's finish reasons by their numbers; empty when this vLLM has no such numbers."""
    try:
        members = list(sys.modules["vllm.v1.engine"].FinishReason)
        return {int(member): member.name.lower() for member in members}
    except Exception:  # noqa: BLE001 - not where it used to be, or something else
        return {}


def tells_details() -> bool:
    """Tell whether vLLM's stats can hold iteration details; before 0.26 the option for them only logs."""
    stats = getattr(sys.modules.get("vllm.v1.metrics.stats"), "SchedulerStats", None)
    return hasattr(stats, "iteration_details")


def tells_request_ids() -> bool:
    """Tell whether vLLM's stats of finished requests hold their ids; before 0.20 they do not."""
    stats = getattr(sys.modules.get("vllm.v1.metrics.stats"), "FinishedRequestStats", None)
    fields = {*getattr(stats, "__dataclass_fields__", ()), *getattr(stats, "__annotations__", ())}
    return not fields or "request_id" in fields
