"""What each release says of a step, field by field; what it does not say, or says oddly, costs only itself."""

import weakref
from array import array
from enum import Enum, IntEnum
from types import SimpleNamespace as Stats
from typing import Any

import numpy as np
import pytest

from tests.checkpoints import at_checkpoints
from tests.unit.builders import AGE, EPOCH, MODEL, read, request_stats
from vllm_vitals.records.step import CacheUse, Evictions, Finished, Speculation, Step
from vllm_vitals.vllm.finished import finish_reason
from vllm_vitals.vllm.reader import Reader


def told(
    scheduler: Any = None, iteration: Any = None, multimodal: Any = None, **options: Any
) -> tuple[Step, list[str]]:
    """Return what a reader makes of vLLM's stats, and the fields it complains of."""
    complaints: list[str] = []
    reader = Reader(MODEL, lambda field, *_: complaints.append(field), born=100.0 - AGE, **options)
    (step,) = reader.read([(100.0, scheduler, iteration, multimodal, 0)], EPOCH - 100.0)
    return step, complaints


def ended(*requests: Any, **options: Any) -> Step:
    """Return the step in which requests end; vLLM reports a first token with each that had none."""
    firsts = [each.e2e_latency for each in requests if not each.num_generation_tokens]
    return read(iteration=Stats(finished_requests=list(requests), time_to_first_tokens_iter=[0.25, *firsts]), **options)


def test_a_step_knows_whose_it_is_and_when_it_was() -> None:
    step = read()
    assert (step.model, step.engine, step.time, step.clock, step.age) == (MODEL, "0", EPOCH, 100.0, AGE)
    assert not step.scheduled
    assert not step.iterated


# The scheduler's fields


@pytest.mark.parametrize(
    ("stats", "running", "waiting", "deferred"),
    [
        # up to 0.17 only those that wait, 0.18 and 0.19 all in one, since 0.20 apart
        (Stats(num_running_reqs=3, num_waiting_reqs=5), 3, 5, 0),
        (Stats(num_running_reqs=3, num_waiting_reqs=7, encoder_cache_usage=0.5), 3, 7, 0),
        (Stats(num_running_reqs=3, num_waiting_reqs=5, num_skipped_waiting_reqs=2), 3, 5, 2),
        (Stats(), 0, 0, 0),
    ],
)
def test_queues(stats: Any, running: int, waiting: int, deferred: int) -> None:
    step = read(stats)
    assert (step.running, step.waiting, step.deferred) == (running, waiting, deferred)
    assert step.scheduled


@pytest.mark.parametrize(
    ("field", "value", "into", "expected"),
    [
        ("kv_cache_usage", 0.25, "kv_cache_usage", 0.25),
        ("prefix_cache_stats", Stats(queries=10, hits=4), "prefix_cache", CacheUse(10, 4)),
        ("prefix_cache_stats", Stats(queries=10, hits=4, preempted_queries=9, preempted_hits=2), "prefix_cache", CacheUse(10, 4, 7)),
        # Two that come back, with 300 tokens each, of which 128 and 256 are still there; one of each is new.
        ("prefix_cache_stats", Stats(preempted_requests=2, preempted_queries=600, preempted_hits=384), "prefix_cache", CacheUse(0, 0, 214)),
        ("connector_prefix_cache_stats", Stats(queries=6, hits=2), "external_prefix_cache", CacheUse(6, 2)),
        ("running_lora_adapters", {"fr": 2}, "lora_running", {"fr": 2}),
        ("waiting_lora_adapters", {"de": 1}, "lora_waiting", {"de": 1}),
        (
            "spec_decoding_stats",
            Stats(num_spec_tokens=2, num_drafts=2, num_draft_tokens=4, num_accepted_tokens=3, num_accepted_tokens_per_pos=[2, 1]),
            "speculation", Speculation(2, 4, (2, 1)),
        ),
        (
            "kv_cache_eviction_events",
            [Stats(lifetime_seconds=8.0, idle_seconds=2.0, reuse_gaps_seconds=(0.5, 1.5)),
             Stats(lifetime_seconds=4.0, idle_seconds=3.0, reuse_gaps_seconds=())],
            "evictions", Evictions(array("d", [8, 4]), array("d", [2, 3]), array("d", [0.5, 1.5])),
        ),
        ("cudagraph_stats", Stats(num_unpadded_tokens=13, num_padded_tokens=16), "graph_tokens", {"padded": 16, "unpadded": 13}),
        ("perf_stats", Stats(num_flops_per_gpu=10**15), "flops", 10**15),
        ("perf_stats", Stats(num_read_bytes_per_gpu=7, num_write_bytes_per_gpu=5), "memory_traffic", {"read": 7, "write": 5}),
        ("iteration_details", Stats(elapsed_ms=12.5, num_ctx_tokens=96, num_generation_tokens=3), "duration", 0.0125),
        ("num_kv_fetch_reqs_by_stage", {"in_progress": 2}, "kv_fetch", {"in_progress": 2}),
    ],
)  # fmt: skip
def test_what_the_scheduler_says(field: str, value: Any, into: str, expected: Any) -> None:
    step, complaints = told(Stats(**{field: value}))
    assert getattr(step, into) == expected
    assert complaints == []
    assert getattr(read(Stats()), into) == getattr(Step("", "", 0, 0, 0), into)


@pytest.mark.parametrize("field", ["step_counter", "current_wave", "ec_connector_stats", "a_later_one"])
def test_what_the_scheduler_says_to_others_is_passed_over(field: str) -> None:
    assert told(Stats(**{field: {"anything": object()}})) == told(Stats())


class Tier(str, Enum):
    DEVICE = "device"
    HOST = "host"
    DISK = "disk"


@pytest.mark.parametrize(
    ("local", "external", "tiers", "expected"),
    [
        (96, 0, None, {"device": 96}),
        (96, 32, {Tier.HOST: 24, Tier.DISK: 8}, {"device": 96, "host": 24, "disk": 8}),
        (0, 32, {Tier.HOST: 32}, {"host": 32}),
        (96, 32, {Tier.DEVICE: 8, Tier.HOST: 24}, {"device": 104, "host": 24}),
        # before 0.32 a connector does not tell where it found them
        (96, 32, None, {"device": 96, "external_unspecified": 32}),
        (0, 32, {}, {"external_unspecified": 32}),
        (0, 0, {}, None),
    ],
)
def test_cached_tokens_add_up_by_their_source(
    local: int, external: int, tiers: dict[Any, int] | None, expected: dict[str, int] | None
) -> None:
    connector = Stats(queries=200, hits=external, **({} if tiers is None else {"hits_by_source": tiers}))
    step = read(Stats(prefix_cache_stats=Stats(queries=200, hits=local), connector_prefix_cache_stats=connector))
    assert step.cached_by_source == expected
    assert sum((step.cached_by_source or {}).values()) == local + external


def test_more_hits_than_lookups_are_clamped_and_are_no_error(caplog: pytest.LogCaptureFixture) -> None:
    step, complaints = told(Stats(prefix_cache_stats=Stats(queries=4, hits=9)))
    assert step.prefix_cache == CacheUse(4, 4)
    assert step.clamped == ("vllm.prefix_cache.hit_tokens",)
    assert complaints == []
    (line,) = caplog.messages
    assert "SimpleNamespace.hits = 9" in line
    assert "clamped" in line
    assert "left out" not in line


def test_hits_of_lookups_that_cannot_be_are_none() -> None:
    step, _ = told(Stats(prefix_cache_stats=Stats(queries=-5, hits=3)))
    assert step.prefix_cache == CacheUse(-5, 0)
    step, _ = told(Stats(prefix_cache_stats=Stats(queries=-5, hits=0)))
    assert (step.prefix_cache, step.clamped) == (CacheUse(-5, 0), ())


# Iteration details


def details(**fields: Any) -> Any:
    return Stats(**{"elapsed_ms": 2.0, "num_ctx_tokens": 96, "num_generation_tokens": 3, "is_dummy": False, **fields})


OUTPUT = Stats(num_generation_tokens=4, prompt_token_stats=Stats(computed=12, total=12))


def test_details_are_what_a_step_worked_on() -> None:
    step = read(Stats(iteration_details=details()), OUTPUT, details=True)
    assert (step.duration, step.scheduled_tokens) == (0.002, {"prefill": 96, "decode": 3})


def test_a_dummy_step_worked_on_nothing() -> None:
    step = read(Stats(iteration_details=details(is_dummy=True)), details=True)
    assert (step.duration, step.scheduled_tokens) == (None, None)


def test_a_step_without_details_is_counted_by_its_outputs() -> None:
    assert read(Stats(), OUTPUT).scheduled_tokens == {"prefill": 12, "decode": 4}


def test_with_details_the_outputs_do_not_count_a_second_time() -> None:
    reader = Reader(MODEL, lambda *_: None, details=True)
    steps = reader.read(
        [(100.0, Stats(iteration_details=given), OUTPUT, None, 0) for given in (details(), None)], EPOCH
    )
    assert [(step.scheduled_tokens or {}).get("decode", 0) for step in steps] == [3, 0]


def test_a_release_that_only_logs_its_details_is_counted_by_its_outputs() -> None:
    step = read(Stats(num_running_reqs=1), OUTPUT, details=True)
    assert step.scheduled_tokens == {"prefill": 12, "decode": 4}


# The outputs' fields


@pytest.mark.parametrize(
    ("field", "value", "into", "expected"),
    [
        ("num_generation_tokens", 5, "generation_tokens", 5),
        ("num_preempted_reqs", 2, "preempted", 2),
        ("num_corrupted_reqs", 1, "corrupted", 1),
        ("time_to_first_tokens_iter", [0.25, 0.5], "first_token_latencies", array("d", [0.25, 0.5])),
        ("inter_token_latencies_iter", [0.25], "inter_token_latencies", array("d", [0.25])),
        ("n_params_iter", [1, 4], "sequences_asked", array("d", [1, 4])),
        ("max_num_generation_tokens_iter", [7], "longest_outputs", array("d", [7])),
        ("num_watermarked_reqs", 3, "watermarks", {"watermarked": 3}),
        ("num_watermark_skipped_reqs", 2, "watermarks", {"skipped": 2}),
        ("num_not_watermarked_reqs", 1, "watermarks", {"not_watermarked": 1}),
        ("num_prompt_tokens", 9, "prompt_tokens", {"unknown": 9}),
        ("num_prompt_tokens", 9, "computed_tokens", 9),
    ],
)
def test_what_the_outputs_say(field: str, value: Any, into: str, expected: Any) -> None:
    step, complaints = told(iteration=Stats(**{field: value}))
    assert getattr(step, into) == expected
    assert complaints == []
    assert getattr(read(iteration=Stats()), into) == getattr(Step("", "", 0, 0, 0), into)


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        (Stats(computed=36, local_cache_hit=64, external_kv_transfer=0), {"local_compute": 36, "local_cache_hit": 64}),
        (Stats(computed=36, local_cache_hit=32, external_kv_transfer=32),
         {"local_compute": 36, "local_cache_hit": 32, "external_kv_transfer": 32}),
        # 0.16 to 0.19: one of the 65 hits was computed again
        (Stats(computed=1, local_cache_hit=65, recomputed_tokens=1), {"local_compute": 1, "local_cache_hit": 64}),
        (Stats(), None),
    ],
)  # fmt: skip
def test_prompt_tokens_by_source_add_up_to_the_prompt(sources: Any, expected: dict[str, int] | None) -> None:
    step = read(iteration=Stats(prompt_token_stats=sources, num_prompt_tokens=999))
    assert step.prompt_tokens == expected
    assert step.computed_tokens == (expected or {}).get("local_compute", 0)


def test_the_multimodal_cache() -> None:
    assert read(multimodal=Stats(queries=3, hits=2)).multimodal_cache == CacheUse(3, 2)


# Finished requests


@pytest.mark.parametrize(
    ("field", "value", "into", "expected"),
    [
        ("e2e_latency", 12.5, "duration", 12.5),
        ("queued_time", 0.5, "queue", 0.5),
        ("prefill_time", 0.25, "prefill", 0.25),
        ("decode_time", 0.25, "decode", 0.25),
        ("inference_time", 0.5, "inference", 0.5),
        ("mean_time_per_output_token", 0.125, "time_per_output_token", 0.125),
        ("num_prompt_tokens", 7, "input_tokens", 7),
        ("num_generation_tokens", 9, "output_tokens", 9),
        ("max_tokens_param", 64, "max_tokens", 64),
        ("max_tokens_param", None, "max_tokens", None),
        ("num_cached_tokens", 4, "cached_tokens", 4),
        ("num_cached_tokens", -1, "cached_tokens", 0),
        ("request_id", "abc", "request_id", "abc"),
        ("num_preemptions", 2, "preemptions", 2),
        ("num_preemptions", 0, "preemptions", 0),
    ],
)
def test_what_a_finished_request_says(field: str, value: Any, into: str, expected: Any) -> None:
    (request,) = ended(request_stats(**{field: value})).finished
    assert getattr(request, into) == expected


def test_what_a_release_does_not_say_of_a_request_is_none() -> None:
    (request,) = read(iteration=Stats(finished_requests=[Stats(finish_reason="stop")])).finished
    silent = Finished("stop", EPOCH)
    for field in Finished.__struct_fields__:
        assert getattr(request, field) == getattr(silent, field), field


@pytest.mark.parametrize("tokens", [0, 1])
def test_a_request_of_one_token_has_no_time_per_output_token(tokens: int) -> None:
    (request,) = ended(request_stats(num_generation_tokens=tokens, mean_time_per_output_token=0.0)).finished
    assert request.time_per_output_token is None


@pytest.mark.parametrize("reason", ["abort", "error", "length", "stop", "repetition", "a_later_one"])
def test_a_request_that_ends_without_a_token_has_no_latency_but_its_duration(reason: str) -> None:
    cut = request_stats(
        reason, e2e_latency=0.5, num_generation_tokens=0, queued_time=0.0, prefill_time=-7000.0, inference_time=-7000.0,
        decode_time=0.0,
    )  # fmt: skip
    step = ended(cut, request_stats())
    assert list(step.first_token_latencies) == [0.25]
    first, other = step.finished
    assert (first.duration, first.prefill, first.decode, first.inference) == (0.5, None, None, None)
    assert (other.prefill, other.decode, other.inference) == (2.0, 6.0, 8.0)


def test_a_request_that_was_cut_off_in_the_queue_has_no_time_since_the_boot() -> None:
    cut = request_stats("abort", e2e_latency=0.5, num_generation_tokens=0, queued_time=-7000.0)
    assert ended(cut).finished[0].queue is None


def test_a_pooling_request_keeps_its_phases() -> None:
    pooled = request_stats("stop", num_generation_tokens=0, prefill_time=2.0, inference_time=2.0, decode_time=0.0)
    (request,) = ended(pooled, pooling=True).finished
    assert (request.prefill, request.inference) == (2.0, 2.0)


def test_a_request_that_the_engine_did_not_stamp_was_in_no_queue() -> None:
    (request,) = ended(request_stats(e2e_latency=1.0, queued_time=0.0, inference_time=90_000.0)).finished
    assert request.queue is None


class Reason(IntEnum):
    STOP = 0
    ON_FIRE = 9

    def __str__(self) -> str:
        return "anything"


class Word(Enum):
    LENGTH = "Length"


@pytest.mark.parametrize(
    ("value", "label"),
    [(Reason.STOP, "stop"), (Reason.ON_FIRE, "on_fire"), (Word.LENGTH, "length"), ("stop", "stop"), ("later", "later"),
     (0, "unknown"), (7, "unknown"), (None, "unknown"), (1.5, "unknown"), (object(), "unknown"), (np.array([1, 2]), "unknown")],
)  # fmt: skip
def test_a_finish_reason_is_the_name_of_its_member(value: Any, label: str) -> None:
    assert finish_reason(value) == label
    assert ended(request_stats(value)).finished[0].reason == label


# What is odd costs only itself

SCHEDULER = (
    "num_running_reqs", "num_waiting_reqs", "num_skipped_waiting_reqs", "prefix_cache_stats", "connector_prefix_cache_stats",
    "spec_decoding_stats", "running_lora_adapters", "waiting_lora_adapters", "kv_cache_eviction_events", "cudagraph_stats",
    "perf_stats", "iteration_details", "num_kv_fetch_reqs_by_stage",
)  # fmt: skip
ITERATION = (
    "num_prompt_tokens", "prompt_token_stats", "num_preempted_reqs", "num_corrupted_reqs", "finished_requests",
    "max_num_generation_tokens_iter", "n_params_iter", "time_to_first_tokens_iter", "inter_token_latencies_iter",
    "num_watermarked_reqs",
)  # fmt: skip
REQUEST = (
    "e2e_latency", "queued_time", "prefill_time", "decode_time", "inference_time", "mean_time_per_output_token",
    "num_prompt_tokens", "max_tokens_param", "num_cached_tokens", "num_preemptions", "request_id",
)  # fmt: skip


class Raising:
    """Raises whatever is asked of it."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __bool__(self) -> bool:
        raise RuntimeError("bool")

    def __len__(self) -> int:
        raise RuntimeError("len")


ODD = [
    np.array([1, 2]),
    np.array(["a"]),
    np.array([]),
    np.array([[1.0]]),
    Raising(),
    object(),
    "text",
    7,
    [object()],
    {"a": "b"},
]
odd = pytest.mark.parametrize("value", ODD, ids=lambda value: type(value).__name__)


@odd
def test_an_odd_field_of_the_scheduler_costs_only_itself(value: Any) -> None:
    for field in SCHEDULER:
        step = read(Stats(**{"kv_cache_usage": 0.5, field: value}), Stats(num_generation_tokens=5))
        assert (step.scheduled, step.kv_cache_usage, step.generation_tokens) == (True, 0.5, 5), field


@odd
def test_an_odd_field_of_the_outputs_costs_only_itself(value: Any) -> None:
    for field in ITERATION:
        step = read(Stats(num_running_reqs=1), Stats(**{"num_generation_tokens": 5, field: value}))
        assert (step.running, step.generation_tokens) == (1, 5), field


@odd
def test_an_odd_field_of_a_request_costs_only_itself(value: Any) -> None:
    for field in REQUEST:
        step = ended(request_stats(), request_stats(**{field: value}))
        assert [request.output_tokens for request in step.finished] == [3, 3], field
        assert step.finished[1].reason == "stop", field


@pytest.mark.parametrize("field", ["e2e_latency", "queued_time", "num_prompt_tokens", "finish_reason"])
def test_a_property_that_raises_costs_only_itself(field: str) -> None:
    def fail(_: Any) -> Any:
        raise RuntimeError

    broken = type("Request", (Stats,), {field: property(fail)})()
    vars(broken).update({name: value for name, value in vars(request_stats()).items() if name != field})
    step, complaints = told(iteration=Stats(finished_requests=[broken]))
    assert [request.output_tokens for request in step.finished] == [3]
    assert complaints == [f"Request.{field}"]


def test_a_request_without_its_count_of_tokens_keeps_its_latencies() -> None:
    odd_one = request_stats(num_generation_tokens="many")
    (request,) = read(iteration=Stats(finished_requests=[odd_one], time_to_first_tokens_iter=[0.25])).finished
    assert (request.output_tokens, request.prefill, request.inference) == (None, 2.0, 8.0)


def test_arrays_are_as_good_as_lists() -> None:
    events = np.array([Stats(lifetime_seconds=8.0, idle_seconds=2.0, reuse_gaps_seconds=np.array([0.5]))], dtype=object)
    requests = np.array([request_stats(), request_stats()], dtype=object)
    firsts = np.array([0.25, 0.5])
    step, complaints = told(
        Stats(kv_cache_eviction_events=events), Stats(finished_requests=requests, time_to_first_tokens_iter=firsts)
    )
    assert step.evictions is not None
    assert list(step.evictions.reuse_gaps) == [0.5]
    assert len(step.finished) == 2
    assert list(step.first_token_latencies) == [0.25, 0.5]
    assert complaints == []


class Tracked(Stats):
    """Stats whose end can be seen."""


def test_vllms_objects_are_let_go_of_one_by_one() -> None:
    reader = Reader(MODEL, lambda *_: None)
    made = [Tracked(num_generation_tokens=1, inter_token_latencies_iter=[0.5]) for _ in range(8)]
    alive = [weakref.ref(each) for each in made]
    calls = [(float(place), None, each, None, 0) for place, each in enumerate(made)]
    made.clear()
    seen: list[int] = []
    with at_checkpoints(lambda: seen.append(sum(each() is not None for each in alive))):
        reader.read(calls, EPOCH)
    assert calls == []
    assert len(set(seen)) > 4  # fewer and fewer, not all at the end
    assert seen == sorted(seen, reverse=True)
