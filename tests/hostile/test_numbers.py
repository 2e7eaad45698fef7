"""Whatever numbers come, in whatever order: what is shown can be true, and what belongs together fits together."""

import threading
import time
from types import SimpleNamespace as Stats
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tests.checkpoints import at_checkpoints
from tests.hostile.pages import Numbers, Pages, Pushes, check, total
from tests.unit.builders import EPOCH, Clock, collect, examples, facts, feed
from tests.unit.conftest import clock
from tests.unit.otlp import decoded, metrics
from vllm_vitals.aggregation.aggregator import Aggregator
from vllm_vitals.catalog.cost import STATES
from vllm_vitals.config.settings import Settings
from vllm_vitals.records.gpu import Gpu, Reading, Sample
from vllm_vitals.records.step import CacheUse, Finished, Health, Sleep, Step
from vllm_vitals.vllm.reader import Reader

__all__ = ["clock"]

EVERY = ("lora", "speculation", "kv_connector", "mfu", "cudagraph", "iteration_details", "kv_residency", "nan_check")
SLOS = [{"name": "fast", "target": 0.9, "ttft": 1, "tpot": 0.1}, {"name": "done", "target": 0.9, "e2e": 5}]
SETTINGS: dict[str, Any] = {"slos": SLOS, "price": {"per_gpu_hour": 2.5}, "exemplars": True}

# --- Any numbers

NUMBERS = (0, 1, 3, 0.25, 5e-324, 1e-300, 1e308, -1, -0.0, -1e308, float("nan"), float("inf"), float("-inf"), 2**53, 2**62 - 1, 2**63,
           10**400, -(2**62), 10**9, True, None)  # fmt: skip
numbers = st.sampled_from(NUMBERS)
many = st.lists(numbers, max_size=4)


def stats(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return objects of which each has some of these fields."""
    return st.fixed_dictionaries({}, optional=fields).map(lambda given_: Stats(**given_))


def all_of(*names: str) -> dict[str, st.SearchStrategy[Any]]:
    return dict.fromkeys(names, numbers)


cache = stats(**all_of("queries", "hits", "preempted_queries", "preempted_hits", "preempted_requests"))
by_name = st.dictionaries(st.sampled_from(["a", "read", "", None]), numbers, max_size=3)
request = stats(
    **all_of(
        "e2e_latency", "queued_time", "prefill_time", "decode_time", "inference_time", "mean_time_per_output_token",
        "num_prompt_tokens", "num_generation_tokens", "num_cached_tokens", "max_tokens_param", "num_preemptions",
    ),
    finish_reason=st.sampled_from(["stop", "error", "abort", None, 7]), request_id=st.sampled_from(["r", "nul\0", 'q"', None]),
)  # fmt: skip
scheduler = stats(
    **all_of("num_running_reqs", "num_waiting_reqs", "num_skipped_waiting_reqs", "kv_cache_usage"),
    prefix_cache_stats=cache, connector_prefix_cache_stats=cache, running_lora_adapters=by_name,
    spec_decoding_stats=stats(num_drafts=numbers, num_draft_tokens=numbers, num_accepted_tokens_per_pos=many),
    perf_stats=stats(**all_of("num_flops_per_gpu", "num_read_bytes_per_gpu", "num_write_bytes_per_gpu")),
    iteration_details=stats(**all_of("elapsed_ms", "num_ctx_tokens", "num_generation_tokens")),
    kv_cache_eviction_events=st.lists(stats(lifetime_seconds=numbers, idle_seconds=numbers, reuse_gaps_seconds=many), max_size=2),
    kv_connector_stats=st.dictionaries(st.sampled_from(["transfer_duration", "bytes_transferred", "cache_hits", "host_cache_usage_perc"]), many),
)  # fmt: skip
iteration = stats(
    **all_of("num_generation_tokens", "num_preempted_reqs", "num_corrupted_reqs", "iteration_timestamp", "num_prompt_tokens"),
    prompt_token_stats=stats(**all_of("computed", "local_cache_hit", "external_kv_transfer", "recomputed_tokens")),
    finished_requests=st.lists(request, max_size=3), time_to_first_tokens_iter=many, n_params_iter=many,
    inter_token_latencies_iter=st.one_of(many, st.builds(lambda value: [value] * 80, numbers)),
)  # fmt: skip
PASSED = (0.0, 0.0, 5e-324, 1e-9, 0.01, 1.0, 40.0, -1.0, -100.0)
"""Seconds between two steps; clocks go back as well."""
call = st.tuples(
    st.sampled_from(PASSED), st.none() | scheduler, st.none() | iteration, st.none() | cache, st.sampled_from([0, 0, 1, 10**9])
)  # fmt: skip
gpus = st.lists(
    st.builds(
        Reading, st.just(Gpu("GPU-0", "NVIDIA H200", "NVIDIA")), model=st.just("m"), engine=st.just("0"), energy=numbers,
        power=numbers, utilization=numbers, memory_usage=numbers, memory_limit=numbers,
        io=st.dictionaries(st.just(("nvlink", "receive")), numbers), throttled=st.dictionaries(st.just("sw_power_cap"), numbers),
    ),
    max_size=2,
)  # fmt: skip
happenings = st.one_of(call, call, call, st.tuples(st.just("gpu"), gpus), st.sampled_from(["asleep", "awake", "flush"]))


class Engine:
    """Real readers and a collector, to which things happen."""

    def __init__(self) -> None:
        self.now = self._begun = time.monotonic()
        known = {"gpus": 2, "max_num_seqs": 4, "kv_cache_tokens": 1000, "draft_tokens": 3}
        self.aggregator = collect(facts("0", *EVERY, **known), facts("1", *EVERY, **known), **SETTINGS)
        self._reader = Reader("m", lambda *_: None, born=self.now - 50.0, details=True, connector="NixlConnector")

    def happen(self, what: Any) -> None:
        if isinstance(what, str):
            self.now += 1.0
            if what == "flush":
                self.aggregator.flush(self.now)
            else:
                feed(self.aggregator, Sleep("m", "0", "discard_all" if what == "asleep" else "awake", self.now))
        elif what[0] == "gpu":
            feed(self.aggregator, Sample(EPOCH, self.now, what[1]))
        else:
            passed, *told = what
            self.now = max(self.now + passed, self._begun - 40.0)
            feed(self.aggregator, *self._reader.read([(self.now, *told)], EPOCH))


@examples(30, suppress_health_check=list(HealthCheck))
@given(st.lists(st.lists(happenings, max_size=5), min_size=1, max_size=3))
def test_no_sequence_of_numbers_makes_one_that_cannot_be(rounds: list[list[Any]]) -> None:
    engine = Engine()
    text, openmetrics = (Pages(engine.aggregator, openmetrics=each) for each in (False, True))
    pushes = [Pushes(engine.aggregator, temporality=t, exponential=False) for t in ("cumulative", "delta")]
    for happened in rounds:
        for each in happened:
            engine.happen(each)
        text.next()
        for push in pushes:
            push.next()
    engine.aggregator.flush(engine.now + 1.0)
    openmetrics.next()


@examples(15, suppress_health_check=list(HealthCheck))
@given(st.lists(happenings, max_size=8))
def test_nor_one_of_an_exponential_histogram(happened: list[Any]) -> None:
    engine = Engine()
    exponential = Aggregator(Settings(otlp={"histograms": "exponential"}))
    feed(exponential, facts())
    engine.aggregator = exponential
    pushes = [Pushes(exponential, temporality=t, exponential=True) for t in ("cumulative", "delta")]
    for each in happened:
        engine.happen(each)
        for push in pushes:
            push.next()


def test_after_nonsense_what_makes_sense_counts_as_ever() -> None:
    engine = Engine()
    for number in NUMBERS:
        nonsense = Stats(num_running_reqs=number, num_waiting_reqs=number, kv_cache_usage=number,
                         prefix_cache_stats=Stats(queries=number, hits=number),
                         perf_stats=Stats(num_flops_per_gpu=-1, num_read_bytes_per_gpu=-1))  # fmt: skip
        ended = Stats(e2e_latency=number, queued_time=number, prefill_time=number, inference_time=number, num_prompt_tokens=64,
                      num_cached_tokens=32, num_generation_tokens=2, decode_time=number, finish_reason="stop")  # fmt: skip
        engine.happen((0.01, nonsense, Stats(finished_requests=[ended]), None, 0))
        engine.happen(("gpu", [Reading(Gpu("GPU-0"), model="m", engine="0", energy=number, power=number)]))
    engine.happen("flush")
    pages = Pages(engine.aggregator, openmetrics=False)
    before = pages.next()
    good = Stats(e2e_latency=2.0, queued_time=0.25, prefill_time=0.5, inference_time=1.5, num_prompt_tokens=64, decode_time=1.0,
                 num_cached_tokens=0, num_generation_tokens=2, finish_reason="stop")  # fmt: skip
    engine.happen((0.01, Stats(num_running_reqs=1, kv_cache_usage=0.5), Stats(finished_requests=[good] * 400), None, 0))
    engine.happen(("gpu", [Reading(Gpu("GPU-0"), model="m", engine="0", energy=500.0)]))
    engine.happen((1.0, Stats(num_running_reqs=1, kv_cache_usage=0.5), None, None, 0))
    cached = Stats(**{**vars(good), "num_cached_tokens": 32})
    engine.happen((0.01, Stats(num_running_reqs=1), Stats(finished_requests=[cached]), None, 0))
    engine.happen("flush")
    now = pages.next()

    def more(name: str, **labels: str) -> float:
        return total(now, name, **labels) - total(before, name, **labels)

    assert more("vllm_request_phase_duration_seconds_sum", phase="frontend") == pytest.approx(401 * 0.25)
    assert more("vllm_engine_energy_joules_total") == pytest.approx(500.0)
    assert more("vllm_prefix_cache_saved_prefill_seconds_total") == pytest.approx(32 * 0.5 / 64, rel=0.5)
    assert 0 < total(now, "vllm_engine_saturation_ratio", engine="0") < 1


# --- What cannot be true counts once


def test_hits_beyond_lookups_are_clamped_and_counted_once_as_no_error() -> None:
    engine = Engine()
    too_many = Stats(queries=4, hits=9)
    engine.happen((0.1, Stats(num_running_reqs=1, prefix_cache_stats=too_many), None, too_many, 0))
    shown = Pages(engine.aggregator, openmetrics=False).next()
    assert total(shown, "vllm_prefix_cache_hit_tokens_total", tier="local") == 4
    assert total(shown, "vitals_values_rejected_total") == 2
    for metric in ("vllm.prefix_cache.hit_tokens", "vllm.multimodal_cache.hits"):
        assert total(shown, "vitals_values_rejected_total", metric=metric, reason="absurd") == 1
    assert total(shown, "vitals_errors_total") == 0


def test_names_of_clamped_metrics_that_nobody_knows_are_passed_over() -> None:
    aggregator = collect(
        Step("m", "0", EPOCH, 1.0, 9.0, running=0, clamped=("made.up", "vllm.prefix_cache.hit_tokens") * 2)
    )
    assert aggregator.store.rejects == {("vllm.prefix_cache.hit_tokens", "absurd"): 2}


@pytest.mark.parametrize("queue", [float("nan"), -5.0, 1e9])
def test_a_queue_time_that_cannot_be_tells_nothing_of_the_front_end(queue: float) -> None:
    ended = Finished("stop", EPOCH, duration=10.0, queue=queue, inference=8.0)
    aggregator = collect(Step("m", "0", EPOCH, 100.0, 99.0, running=0, finished=(ended,)))
    shown = Pages(aggregator, openmetrics=False).next()
    for phase in ("queue", "frontend"):
        assert total(shown, "vllm_request_phase_duration_seconds_count", phase=phase) == 0
    assert total(shown, "vitals_values_rejected_total", metric="vllm.request.phase.duration") == 1


def test_only_aborts_are_no_step() -> None:
    engine = Engine()
    before = Pages(engine.aggregator, openmetrics=False).next()
    aborted = Stats(finish_reason="abort", e2e_latency=0.5, num_generation_tokens=0)
    engine.happen(
        (0.1, None, Stats(num_generation_tokens=0, iteration_timestamp=EPOCH, finished_requests=[aborted]), None, 0)
    )
    after = Pages(engine.aggregator, openmetrics=False).next()
    for name in ("vitals_steps_total", "vllm_step_tokens_count", "vllm_step_processing_duration_seconds_count"):
        assert total(after, name) == total(before, name) == 0
    assert total(after, "vllm_requests_finished_total", finish_reason="abort") == 1
    engine.happen((0.1, Stats(num_running_reqs=0), Stats(num_generation_tokens=0), None, 0))
    assert total(Pages(engine.aggregator, openmetrics=False).next(), "vllm_step_tokens_count") == 1


# --- What is known beforehand

AHEAD: dict[str, dict[str, tuple[str, ...]]] = {
    "vllm_spec_decode_accepted_tokens_total": {"position": ("0", "1", "2")},
    "vllm_prefix_cache_queried_tokens_total": {"tier": ("local", "external")},
    "vllm_prefix_cache_hit_tokens_total": {"tier": ("local", "external")},
    "vllm_requests_finished_total": {"finish_reason": ("stop", "length", "abort", "error", "repetition")},
    "vllm_requests_rejected_total": {"reason": ("max_num_queued_reqs", "max_num_queued_tokens")},
    "vllm_tokens_prompt_total": {"source": ("local_compute", "local_cache_hit", "external_kv_transfer")},
    "vllm_tokens_prompt_cached_total": {"source": ("device",)},
    "vllm_cuda_graph_tokens_total": {"kind": ("padded", "unpadded")},
    "vllm_perf_memory_traffic_bytes_total": {"direction": ("read", "write")},
    "vllm_step_scheduled_tokens_total": {"phase": ("prefill", "decode")},
    "vllm_engine_gpu_time_seconds_total": {"state": STATES},
    "vllm_engine_cost_total": {"state": STATES, "currency": ("USD",)},
    "vllm_request_phase_duration_seconds_count": {"phase": ("queue", "prefill", "decode", "frontend")},
    "gen_ai_server_request_duration_seconds_count": {"error_type": ("", "error")},
    "vllm_slo_requests_total": {"slo": ("fast", "done"), "outcome": ("good", "bad")},
    "vllm_slo_excluded_total": {"slo": ("fast", "done"), "reason": ("abort", "error", "unknown")},
    "vllm_slo_violations_total": {"slo": ("fast", "done"), "objective": ("ttft", "tpot", "e2e")},
    "vitals_errors_total": {"process": ("0",), "stage": ("hook", "read", "wire", "collect", "export")},
    "vitals_steps_dropped_total": {"process": ("0",)},
    "vitals_exports_total": {"exporter": ("prometheus", "otlp")},
    "vitals_exports_failed_total": {"exporter": ("prometheus", "otlp")},
    "vitals_exports_refused_points_total": {"exporter": ("prometheus", "otlp")},
    "vitals_export_duration_seconds_count": {"exporter": ("prometheus", "otlp")},
}
"""Label values that the settings and the engine's configuration tell, by the counters and histograms that have them."""


def test_every_label_value_that_is_known_exists_at_0_before_anything_happens() -> None:
    otlp = {"endpoint": "http://127.0.0.1:9"}
    shown = Pages(collect(facts("0", *EVERY, gpus=1, draft_tokens=3), **SETTINGS, otlp=otlp), openmetrics=False).next()
    for name, labels in AHEAD.items():
        for label, values in labels.items():
            series = [dict(has) for each, has in shown if each == name]
            assert {each.get(label, "") for each in series} == set(values), (name, label)
        assert total(shown, name) == 0, name


@pytest.mark.parametrize(
    ("version", "sources"),
    [("0.15.1", {"local_compute", "local_cache_hit", "external_kv_transfer", "unknown"}),
     ("0.16.0", {"local_compute", "local_cache_hit", "external_kv_transfer"}),
     ("1.2.3", {"local_compute", "local_cache_hit", "external_kv_transfer"}), ("", {"local_compute", "local_cache_hit", "external_kv_transfer"})],
)  # fmt: skip
def test_the_one_source_of_an_old_vllm_is_known_beforehand(version: str, sources: set[str]) -> None:
    shown = Pages(collect(facts(info={"vllm_version": version})), openmetrics=False).next()
    assert {dict(labels)["source"] for name, labels in shown if name == "vllm_tokens_prompt_total"} == sources


def test_without_a_speculator_or_a_connector_nothing_is_made_up() -> None:
    shown = Pages(collect(facts()), openmetrics=False).next()
    assert not [name for name, _ in shown if name.startswith("vllm_spec_decode")]
    assert {dict(labels)["tier"] for name, labels in shown if name.startswith("vllm_prefix_cache_quer")} == {"local"}
    assert {dict(labels)["exporter"] for name, labels in shown if name == "vitals_exports_total"} == {"prometheus"}


def test_a_process_that_is_heard_of_has_all_its_series_before_its_first_error() -> None:
    aggregator = collect(Health(process="3", hook_time=0.5))
    pages = Pages(aggregator, openmetrics=False)
    shown = pages.next()
    assert {dict(labels)["stage"] for name, labels in shown if name == "vitals_errors_total" and ("process", "3") in labels} == {
        "hook", "read", "wire", "collect", "export",
    }  # fmt: skip
    assert total(shown, "vitals_errors_total") == 0
    feed(aggregator, Health(process="3", errors={"hook": 1}))
    assert total(pages.next(), "vitals_errors_total", process="3", stage="hook") == 1


def test_as_many_positions_as_a_label_can_have_are_made_and_no_more() -> None:
    shown = Pages(collect(facts("0", "speculation", draft_tokens=10**15)), openmetrics=False).next()
    assert len([1 for name, _ in shown if name == "vllm_spec_decode_accepted_tokens_total"]) == 64


# --- What belongs together is read together


def one_more(aggregator: Aggregator, clock: float, engine: str = "0") -> None:
    """Add a step of which every number is known, together with others."""
    ended = Finished(
        "stop", EPOCH, duration=0.5, queue=0.1, prefill=0.1, decode=0.2, inference=0.3, input_tokens=3, output_tokens=5
    )
    step = Step(
        "m", engine, EPOCH, clock, 1000.0, running=1, prefix_cache=CacheUse(4, 2), multimodal_cache=CacheUse(2, 1), iterated=True,
        generation_tokens=5, prompt_tokens={"local_compute": 3, "local_cache_hit": 2}, computed_tokens=3, finished=(ended,),
    )  # fmt: skip
    aggregator.add([step])


def fits(numbers_: Numbers) -> None:
    """Raise unless the numbers of a page are those of whole steps."""
    numbers_ = {series: value for series, value in numbers_.items() if series[0] in TOGETHER}
    check(numbers_)
    for engine in ("0", "1"):
        steps = total(numbers_, "vitals_steps_total", engine=engine)
        assert total(numbers_, "vllm_prefix_cache_queried_tokens_total", engine=engine) == 4 * steps
        assert total(numbers_, "vllm_prefix_cache_hit_tokens_total", engine=engine) == 2 * steps
        assert total(numbers_, "vllm_multimodal_cache_queries_total", engine=engine) == 2 * steps
        assert total(numbers_, "vllm_multimodal_cache_hits_total", engine=engine) == steps
        assert total(numbers_, "vllm_tokens_generation_total", engine=engine) == 5 * steps
        assert total(numbers_, "vllm_tokens_prompt_total", engine=engine) == 5 * steps
        assert total(numbers_, "vllm_step_tokens_sum", engine=engine) == 8 * steps
        assert total(numbers_, "vllm_step_tokens_count", engine=engine) == steps
        ended = total(numbers_, "vllm_requests_finished_total", engine=engine)
        assert total(numbers_, "vllm_request_duration_seconds_count", engine=engine) == ended
        assert total(numbers_, "vllm_request_output_tokens_sum", engine=engine) == 5 * ended
        for slo in ("fast", "done"):
            assert total(numbers_, "vllm_slo_requests_total", engine=engine, slo=slo) == ended
            assert total(numbers_, "vllm_slo_tokens_total", engine=engine, slo=slo) == 5 * ended


TOGETHER = {
    "vitals_steps_total", "vllm_prefix_cache_queried_tokens_total", "vllm_prefix_cache_hit_tokens_total",
    "vllm_multimodal_cache_queries_total", "vllm_multimodal_cache_hits_total", "vllm_tokens_generation_total", "vllm_tokens_prompt_total",
    "vllm_step_tokens_sum", "vllm_step_tokens_count", "vllm_requests_finished_total", "vllm_request_duration_seconds_count",
    "vllm_request_output_tokens_sum", "vllm_slo_requests_total", "vllm_slo_excluded_total", "vllm_slo_tokens_total",
}  # fmt: skip


def parsed(page: bytes) -> Numbers:
    """Return the numbers of a page, fast."""
    found: Numbers = {}
    for line in page.decode().split("\n"):
        if line.partition("{")[0] in TOGETHER:
            series, value = line.rsplit(" ", 1)
            name, _, labels = series.partition("{")
            pairs = (pair.partition("=") for pair in labels.rstrip("}").split('",') if pair)
            found[name, frozenset((key, text.strip('"')) for key, _, text in pairs)] = float(value)
    return found


@pytest.mark.parametrize("openmetrics", [False, True])
def test_a_page_never_shows_half_a_step_wherever_one_comes_between(*, openmetrics: bool) -> None:
    aggregator = collect(facts("0", gpus=1), facts("1", gpus=1), slos=SLOS)
    lock: Any = aggregator.store.lock
    pages = Pages(aggregator, openmetrics=openmetrics)
    added = 0

    def come_between() -> None:
        """Add a step wherever somebody else could, which is wherever the lock is not held."""
        nonlocal added
        if not lock._is_owned():
            added += 1
            one_more(aggregator, 100.0 + added, str(added % 2))

    for _ in range(3):
        before = added
        with at_checkpoints(come_between):
            page = pages.render()
        fits(parsed(page.replace(b"# EOF\n", b"")))
        assert added > before + 50, "nothing could come between: this test shows nothing"


def test_nor_does_a_push() -> None:
    aggregator = collect(facts("0", gpus=1), facts("1", gpus=1), slos=SLOS)
    lock: Any = aggregator.store.lock
    added = 0

    def come_between() -> None:
        nonlocal added
        if not lock._is_owned():
            added += 1
            one_more(aggregator, 100.0 + added, str(added % 2))

    pushes = Pushes(aggregator, temporality="cumulative", exponential=False)
    for _ in range(3):
        with at_checkpoints(come_between):
            aggregator.refresh()
            push = metrics(decoded(pushes.build()))
        (steps, queried, hits) = (
            sum(point.as_double for point in push[name].sum.data_points)
            for name in ("vitals.steps", "vllm.prefix_cache.queried_tokens", "vllm.prefix_cache.hit_tokens")
        )
        assert (queried, hits) == (4 * steps, 2 * steps)
        assert steps < added


def test_pages_of_scrapers_that_never_rest_are_of_whole_steps(effort: str) -> None:
    aggregator = collect(facts("0", gpus=1), facts("1", gpus=1), slos=SLOS)
    enough, wrong = threading.Event(), []
    pages_each, scrapers = {"test": 50, "all": 500}[effort], 4

    def scrape(openmetrics: bool) -> None:  # noqa: FBT001
        pages = Pages(aggregator, openmetrics=openmetrics)
        try:
            for _ in range(pages_each):
                fits(parsed(pages.render().replace(b"# EOF\n", b"")))
        except BaseException as error:  # noqa: BLE001 - shown by the test itself
            wrong.append(error)

    def work(engine: str) -> None:
        number = 0
        while not enough.wait(0.0005):
            number += 1
            one_more(aggregator, 100.0 + number, engine)

    workers = [threading.Thread(target=work, args=(engine,)) for engine in ("0", "1")]
    threads = [threading.Thread(target=scrape, args=(bool(number % 2),)) for number in range(scrapers)]
    for thread in workers + threads:
        thread.start()
    for thread in threads:
        thread.join()
    enough.set()
    for thread in workers:
        thread.join()
    assert not wrong
    shown = Pages(aggregator, openmetrics=False).next()
    fits(shown)
    assert total(shown, "vitals_steps_total") > 0


def test_a_reader_holds_nobody_up_but_who_adds(clock: Clock) -> None:
    """The event loop takes no lock: a hook comes through while a page is being read."""
    aggregator = collect(facts("0"), slos=SLOS)
    one_more(aggregator, clock.now)
    done = threading.Event()
    with aggregator.store.lock:
        from vllm_vitals.ingest.step_queue import StepQueue

        queue = StepQueue(10)
        threading.Thread(target=lambda: (queue.record(None, None, None, 0), done.set())).start()
        assert done.wait(60)
    assert len(queue.calls) == 1
