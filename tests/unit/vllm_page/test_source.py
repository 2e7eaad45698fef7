"""Pages of vLLM's add up in our store to what was counted in all, however often vLLM began anew."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.parser import text_string_to_metric_families

from tests.checkpoints import at_checkpoints
from tests.unit.builders import examples
from tests.unit.native_vllm import TEXT, Vllm, text_page
from tests.unit.otlp import decoded, metrics
from vllm_vitals.catalog import CATALOG
from vllm_vitals.catalog.cache import PREFIX_HITS, PREFIX_QUERIES
from vllm_vitals.catalog.requests import DURATION, GENERATION_TOKENS
from vllm_vitals.exporters.otlp.encode import PushBuilder
from vllm_vitals.exporters.prometheus.text import Renderer
from vllm_vitals.store.store import OTHER, Store
from vllm_vitals.vllm_page.mapping import Totals
from vllm_vitals.vllm_page.parse import NativeSeries, parse
from vllm_vitals.vllm_page.poller import NativeSource

NEWEST = (0, 33, 0)
TOKENS = "vllm_tokens_generation_total"
SECONDS = "vllm_request_duration_seconds"


class Sidecar:
    """A store that is filled from pages, and what a scrape of it shows."""

    def __init__(self, *, exponential: bool = False) -> None:
        self.store = Store(CATALOG, exponential=exponential)
        self.source = NativeSource(self.store)
        self.time = 1000.0
        self._renderer = Renderer(self.store, openmetrics=False)

    def take(self, vllm: Vllm | None) -> "Sidecar":
        self.time += 15
        self.source.take(parse(text_page(vllm.registry), TEXT) if vllm else (), self.time)
        return self

    def see(self, name: str, engine: str = "0", **labels: str) -> float | None:
        wanted = {"model_name": "m", "engine": engine, **labels}
        self._renderer.forget()
        page = b"".join(self._renderer.render()).decode()
        found = [
            sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name == name and sample.labels == wanted
        ]
        return found[0] if found else None

    def buckets(self, name: str, *edges: str) -> list[float | None]:
        return [self.see(f"{name}_bucket", le=edge) for edge in edges]


def serve(tokens: float, *seconds: float, engine: str = "0", buckets: tuple[float, ...] = (1.0, 5.0)) -> Vllm:
    """Return a vLLM that has just been started and did this."""
    vllm = Vllm(*NEWEST, buckets=buckets)
    vllm.count(engine, generation_tokens=tokens)
    vllm.observe("e2e_request_latency_seconds", *seconds, engine=engine)
    return vllm


def undated(vllm: Vllm) -> Vllm:
    """Return a vLLM that does not tell when its series began, as with several API servers."""
    for metric in vllm.metrics.values():
        for series in getattr(metric, "_metrics", {(): metric}).values():
            series._created = 0.0
    return vllm


def test_what_vllm_counted_before_we_came_counts() -> None:
    sidecar = Sidecar().take(serve(7, 0.5, 3.0, 9.0))
    assert sidecar.see(TOKENS) == 7.0
    assert sidecar.buckets(SECONDS, "1.0", "5.0", "+Inf") == [1.0, 2.0, 3.0]
    assert sidecar.see(f"{SECONDS}_sum") == 12.5
    assert sidecar.see(f"{SECONDS}_count") == 3.0


def test_a_page_seen_twice_counts_once() -> None:
    vllm = serve(7, 0.5)
    sidecar = Sidecar().take(vllm).take(vllm)
    cell = sidecar.store[GENERATION_TOKENS].cells["m", "0"]
    assert (sidecar.see(TOKENS), cell.version) == (7.0, 1)
    vllm.count(generation_tokens=4)
    vllm.observe("e2e_request_latency_seconds", 3.0)
    sidecar.take(vllm)
    assert sidecar.see(TOKENS) == 11.0
    assert sidecar.buckets(SECONDS, "1.0", "5.0", "+Inf") == [1.0, 2.0, 2.0]


def test_a_counter_that_is_nothing_yet_is_shown() -> None:
    assert Sidecar().take(serve(0)).see(TOKENS) == 0.0


@pytest.mark.parametrize("began", [undated, lambda vllm: vllm])
def test_ours_go_on_where_vllm_began_anew(began: Any) -> None:
    sidecar = Sidecar().take(began(serve(7, 0.5, 3.0))).take(began(serve(2, 0.5)))
    assert sidecar.see(TOKENS) == 9.0
    assert sidecar.buckets(SECONDS, "1.0", "5.0", "+Inf") == [2.0, 3.0, 3.0]
    assert sidecar.see(f"{SECONDS}_sum") == 4.0


def test_a_restart_is_seen_though_more_was_counted_since() -> None:
    sidecar = Sidecar().take(serve(7, 0.5)).take(serve(10, 0.5, 3.0))
    assert sidecar.see(TOKENS) == 17.0
    assert sidecar.buckets(SECONDS, "1.0", "5.0", "+Inf") == [2.0, 3.0, 3.0]


def test_the_start_of_the_process_tells_where_series_do_not() -> None:
    sidecar = Sidecar()
    for start, tokens in ((100.0, 7), (200.0, 10), (200.0, 11)):
        page = f"# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds {start}\n"
        page += f'# TYPE vllm:generation_tokens_total counter\nvllm:generation_tokens_total{{model_name="m",engine="0"}} {tokens}\n'
        sidecar.source.take(parse(page.encode(), TEXT), 1.0)
    assert sidecar.see(TOKENS) == 18.0


def test_one_bucket_that_fell_is_a_restart() -> None:
    sidecar = Sidecar().take(undated(serve(1, 0.5, 0.5))).take(undated(serve(1, 3.0, 3.0, 3.0)))
    assert sidecar.buckets(SECONDS, "1.0", "5.0", "+Inf") == [2.0, 5.0, 5.0]


def test_engines_begin_anew_each_for_itself() -> None:
    sidecar = Sidecar()
    for first, second in ((7, 5), (2, 6)):
        vllm = undated(serve(first))
        vllm.count("1", generation_tokens=second)
        sidecar.take(undated(vllm))
    assert (sidecar.see(TOKENS), sidecar.see(TOKENS, "1")) == (9.0, 6.0)


def test_what_is_gone_from_the_page_stays_if_it_counts_and_goes_if_it_does_not() -> None:
    vllm = serve(7, 0.5)
    for engine in ("0", "1"):
        vllm.of("num_requests_running", engine=engine).set(3)
        vllm.of("num_requests_waiting_by_reason", "capacity", engine=engine).set(2)
    sidecar = Sidecar().take(vllm)
    vllm.metrics["num_requests_running"].remove("m", "0")
    vllm.metrics["num_requests_waiting_by_reason"].remove("m", "0", "capacity")
    vllm.of("num_requests_waiting_by_reason", "deferred").set(1)
    vllm.metrics["generation_tokens"].clear()
    sidecar.take(vllm)
    assert sidecar.see(TOKENS) == 7.0
    assert sidecar.see("vllm_engine_requests_running") is None
    assert sidecar.see("vllm_engine_requests_running", "1") == 3.0
    assert sidecar.see("vllm_engine_requests_waiting", reason="capacity") is None
    assert sidecar.see("vllm_engine_requests_waiting", reason="deferred") == 1.0
    sidecar.take(None)
    assert sidecar.see("vllm_engine_requests_running", "1") is None
    assert sidecar.see(f"{SECONDS}_count") == 1.0


def test_a_counter_that_comes_back_goes_on() -> None:
    sidecar = Sidecar().take(undated(serve(7))).take(None).take(undated(serve(9)))
    assert sidecar.see(TOKENS) == 9.0


def test_other_buckets_start_over() -> None:
    sidecar = Sidecar().take(serve(1, 0.5, 3.0)).take(serve(1, 0.5, buckets=(0.1, 1.0, 2.0)))
    assert sidecar.buckets(SECONDS, "0.1", "1.0", "2.0", "+Inf") == [0.0, 1.0, 1.0, 1.0]
    assert sidecar.buckets(SECONDS, "5.0") == [None]
    assert sidecar.see(f"{SECONDS}_sum") == 0.5
    sidecar.take(serve(1, 3.0))
    assert sidecar.buckets(SECONDS, "1.0", "5.0", "+Inf") == [0.0, 1.0, 1.0]


def test_series_made_beforehand_get_the_buckets_of_the_page() -> None:
    sidecar = Sidecar()
    sidecar.store[DURATION].histogram(("m", "0"), (), (0.3, 0.5))
    assert sidecar.take(serve(1, 0.5)).buckets(SECONDS, "0.3", "1.0", "+Inf") == [None, 1.0, 1.0]


def test_a_correction_that_runs_ahead_takes_nothing_back() -> None:
    """The Rust front end counts while it writes: the page has a request's tokens and not yet its times."""
    name = "vllm_request_mean_time_per_output_token_seconds"
    vllm = Vllm(*NEWEST)
    for _ in range(3):
        vllm.observe("request_generation_tokens", 1, 5)
        vllm.observe("request_time_per_output_token_seconds", 0.0, 0.5)
    sidecar = Sidecar().take(vllm)
    vllm.observe("request_generation_tokens", 1)
    seen = [sidecar.take(vllm).see(f"{name}_count")]
    vllm.observe("request_time_per_output_token_seconds", 0.0)
    seen.append(sidecar.take(vllm).see(f"{name}_count"))
    vllm.observe("request_generation_tokens", 5)
    vllm.observe("request_time_per_output_token_seconds", 0.5)
    seen.append(sidecar.take(vllm).see(f"{name}_count"))
    assert seen == [3.0, 3.0, 4.0]


def test_what_was_left_out_of_one_life_stays_out_in_the_next() -> None:
    sidecar = Sidecar()
    for limit in (5.0, 10.0):  # another max_model_len, and so other buckets of tokens but not of times
        vllm = Vllm(*NEWEST)
        vllm.registry.unregister(vllm.metrics["request_generation_tokens"])
        tokens = Vllm(*NEWEST, buckets=(1.0, limit))
        tokens.observe("request_generation_tokens", 1, 1, 3)
        vllm.observe("request_time_per_output_token_seconds", 0.0, 0.0, 0.5)
        families = [*vllm.families, *(f for f in tokens.families if f.name == "vllm:request_generation_tokens")]
        sidecar.source.take(families, 1.0)
    assert sidecar.see("vllm_request_mean_time_per_output_token_seconds_count") == 2.0


def test_a_long_life_is_no_absurd_step() -> None:
    vllm = serve(7)
    vllm.count(estimated_flops_per_gpu_total=1e22)  # an H100 takes some months
    assert Sidecar().take(vllm).see("vllm_perf_flops_total") == 1e22


def test_what_is_no_number_is_left_out() -> None:
    vllm = serve(float("inf"), 0.5, float("nan"))
    vllm.of("kv_cache_usage_perc").set(float("nan"))
    sidecar = Sidecar().take(vllm)
    assert sidecar.see(TOKENS) is None
    assert sidecar.see(f"{SECONDS}_count") is None
    assert sidecar.see("vllm_kv_cache_usage_ratio") is None
    assert sidecar.store.rejects["vllm.kv_cache.usage", "not_finite"] == 1
    vllm.of("kv_cache_usage_perc").set(0.25)
    assert sidecar.take(vllm).see("vllm_kv_cache_usage_ratio") == 0.25
    vllm.of("kv_cache_usage_perc").set(float("nan"))
    assert sidecar.take(vllm).see("vllm_kv_cache_usage_ratio") == 0.25


def test_label_values_stay_capped() -> None:
    vllm = Vllm(*NEWEST)
    for position in range(200):
        vllm.of("spec_decode_num_accepted_tokens_per_pos", str(position)).inc()
    sidecar = Sidecar().take(vllm).take(vllm)
    assert sidecar.see("vllm_spec_decode_accepted_tokens_total", position="63") == 1.0
    assert sidecar.see("vllm_spec_decode_accepted_tokens_total", position=OTHER) == 136.0


def test_a_push_has_the_buckets_of_the_page_where_exponential_ones_are_wanted() -> None:
    sidecar = Sidecar(exponential=True).take(serve(1, 0.5, 3.0))
    build = PushBuilder(sidecar.store, temporality="delta", exponential=True, started=1.0, fresh=60.0)
    (point,) = metrics(decoded(build.build()))["vllm.request.duration"].histogram.data_points
    assert (list(point.bucket_counts), point.count, point.sum) == ([1, 1, 0], 2, 3.5)


def test_gauges_pass_as_they_are() -> None:
    made = CollectorRegistry()
    Gauge("g", "G.", registry=made).set(3)
    series = NativeSeries("g", "gauge", (), 3.0)
    totals = Totals()
    assert [totals.total(series), totals.total(series._replace(value=1.0)).value] == [series, 1.0]


STEPS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=4)


def life(steps: Sequence[tuple[int, int]], number: int) -> list[NativeSeries]:
    """Return a histogram after each of its observations, in buckets up to and beyond a bound."""
    below = above = 0
    seen = []
    for low, high in steps:
        below, above = below + low, above + high
        seen.append(NativeSeries("h", "histogram", (), below + 9.0 * above, (1.0,), (below, above), float(number)))
    return seen


@given(st.lists(STEPS, min_size=1, max_size=4))
@examples(100)
def test_totals_never_fall_and_are_the_sum_of_all_lives(lives: list[list[tuple[int, int]]]) -> None:
    totals = Totals()
    pages = [page for number, steps in enumerate(lives) for page in life(steps, number)]
    seen = [totals.total(page) for page in pages]
    for before, after in pairwise(seen):
        assert all(new >= old for new, old in zip(after.counts, before.counts, strict=True))
    steps = [step for one in lives for step in one]
    assert seen[-1].counts == (sum(low for low, _ in steps), sum(high for _, high in steps))
    assert seen[-1].value == seen[-1].counts[0] + 9.0 * seen[-1].counts[1]


def test_nobody_sees_a_part_of_a_page() -> None:
    sidecar, vllm = Sidecar(), Vllm(*NEWEST)
    lock: Any = sidecar.store.lock
    seen: set[tuple[float, float]] = set()

    def look() -> None:
        if not lock._is_owned():  # somebody else could read now
            held = [sidecar.store[metric].cells.get(("m", "0", "local")) for metric in (PREFIX_QUERIES, PREFIX_HITS)]
            seen.add(tuple(getattr(cell, "value", 0.0) for cell in held))  # type: ignore[arg-type]

    for _ in range(3):
        vllm.of("prefix_cache_queries").inc(4)
        vllm.of("prefix_cache_hits").inc(2)
        with at_checkpoints(look):
            sidecar.source.take(parse(text_page(vllm.registry), TEXT), 1.0)
        look()
    assert seen == {(0.0, 0.0), (4.0, 2.0), (8.0, 4.0), (12.0, 6.0)}
