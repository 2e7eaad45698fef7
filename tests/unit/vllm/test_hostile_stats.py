"""Whatever vLLM hands over, nothing raises, the next step counts, and no number that cannot be true shows."""

import math
import re
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tests.unit.builders import examples
from vllm_vitals._util import log as logs
from vllm_vitals.aggregation.aggregator import Aggregator
from vllm_vitals.catalog import CATALOG, requests, self_metrics
from vllm_vitals.config.settings import Settings
from vllm_vitals.ingest.step_drainer import Source, StepDrainer
from vllm_vitals.ingest.step_queue import StepQueue
from vllm_vitals.records.step import Step
from vllm_vitals.store.series import HistogramCell
from vllm_vitals.vllm.reader import Reader

SCHEDULER = (
    "num_running_reqs", "num_waiting_reqs", "num_skipped_waiting_reqs", "kv_cache_usage", "prefix_cache_stats",
    "connector_prefix_cache_stats", "spec_decoding_stats", "running_lora_adapters", "waiting_lora_adapters",
    "kv_cache_eviction_events", "cudagraph_stats", "perf_stats", "iteration_details", "num_kv_fetch_reqs_by_stage",
    "kv_connector_stats",
)  # fmt: skip
ITERATION = (
    "num_generation_tokens", "num_prompt_tokens", "prompt_token_stats", "num_preempted_reqs", "finished_requests",
    "max_num_generation_tokens_iter", "n_params_iter", "time_to_first_tokens_iter", "inter_token_latencies_iter",
    "num_corrupted_reqs", "num_watermarked_reqs",
)  # fmt: skip
REQUEST = (
    "finish_reason", "request_id", "e2e_latency", "num_prompt_tokens", "num_preemptions", "num_generation_tokens",
    "max_tokens_param", "queued_time", "prefill_time", "inference_time", "decode_time", "mean_time_per_output_token",
    "num_cached_tokens",
)  # fmt: skip
PARTS = (
    "queries", "hits", "hits_by_source", "computed", "local_cache_hit", "external_kv_transfer", "num_drafts",
    "num_draft_tokens", "num_accepted_tokens", "num_accepted_tokens_per_pos", "elapsed_ms", "num_ctx_tokens",
    "is_dummy", "num_flops_per_gpu", "num_padded_tokens", "lifetime_seconds", "reuse_gaps_seconds",
)  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each test see what is logged once a process."""
    monkeypatch.setattr(logs, "_said", set())


class Raising:
    """Raises whatever is asked of it."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name) if name.startswith("_") else RuntimeError(name)

    def __iter__(self) -> Any:
        raise RuntimeError("iter")

    def __len__(self) -> int:
        raise RuntimeError("len")

    def __float__(self) -> float:
        raise RuntimeError("float")

    def __index__(self) -> int:
        raise RuntimeError("index")

    def __str__(self) -> str:
        raise RuntimeError("str")


class Unprintable(Raising):
    """Cannot even be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("repr")


class Quitting:
    """Asks the interpreter to exit when looked at."""

    @property
    def num_running_reqs(self) -> int:
        raise SystemExit(1)


class Odd(Enum):
    """An enum that no release has."""

    THING = 99


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.just(10**400),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=3),
    st.sampled_from([Raising(), Odd.THING, object(), -0.0, -7680, math.nan, math.inf, 1e300, 2**63]),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(st.text(max_size=3), st.integers(), st.none()), inner, max_size=3),
        st.dictionaries(st.sampled_from(PARTS), inner, max_size=6).map(lambda d: SimpleNamespace(**d)),
    ),
    max_leaves=8,
)


def objects(names: tuple[str, ...], inner: st.SearchStrategy[Any] = values) -> st.SearchStrategy[Any]:
    """Return objects with any of the attributes, each of any value."""
    made = st.dictionaries(st.sampled_from(names), inner, max_size=len(names)).map(lambda d: SimpleNamespace(**d))
    return st.one_of(made, made, made, scalars)


ZEROS = SimpleNamespace(**dict.fromkeys((*SCHEDULER, *ITERATION, *REQUEST, *PARTS), 0))
COMPLETE = SimpleNamespace(
    **{**vars(ZEROS), "prefix_cache_stats": ZEROS, "prompt_token_stats": ZEROS, "finished_requests": [ZEROS],
       "inter_token_latencies_iter": [0.5] * 100},
)  # fmt: skip
"""Stats that lack nothing."""


def full(stats: Any) -> Any:
    """Return stats with whatever they lack."""
    return SimpleNamespace(**{**vars(COMPLETE), **vars(stats)}) if type(stats) is SimpleNamespace else stats


finished = st.lists(objects(REQUEST, scalars), max_size=3)
iterations = objects(ITERATION, st.one_of(values, finished, st.lists(scalars, max_size=5), objects(PARTS, scalars)))
schedulers = objects(SCHEDULER, st.one_of(values, objects(PARTS)))


def path() -> tuple[StepQueue, StepDrainer, Aggregator]:
    """Return what a step goes through, without threads."""
    aggregator = Aggregator(Settings())
    feed = StepDrainer(aggregator, 1.0)
    queue = StepQueue(100)
    reader = Reader("m", feed.complain)
    feed._sources.append(Source(queue, reader.read))
    return queue, feed, aggregator


def total(aggregator: Aggregator, metric: Any, *key: str) -> float:
    return aggregator.store[metric].number(key[:2], key[2:]).value


@examples(400, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(schedulers, iterations, values), max_size=4))
def test_hostile_stats_neither_raise_nor_poison(calls: list[tuple[Any, Any, Any]]) -> None:
    queue, feed, aggregator = path()
    for call in calls:
        queue.record(*call, 0)
    feed.drain()
    good = SimpleNamespace(num_generation_tokens=5, time_to_first_tokens_iter=[0.1])
    before = total(aggregator, requests.GENERATION_TOKENS, "m", "0")
    queue.record(SimpleNamespace(num_running_reqs=1), good, None, 0)
    feed.drain()
    aggregator.refresh()
    assert total(aggregator, requests.GENERATION_TOKENS, "m", "0") == before + 5
    for metric in CATALOG:
        for key, cell in aggregator.store[metric].cells.items():
            shown = [cell.total, *cell.counts] if isinstance(cell, HistogramCell) else [cell.value]
            assert all(math.isfinite(value) and value >= 0 for value in shown), (metric.name, key)


@examples(300, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(schedulers, iterations, values), min_size=1, max_size=4))
def test_what_is_read_together_reads_as_what_is_read_apart(calls: list[tuple[Any, Any, Any]]) -> None:
    apart, together = Reader("m", lambda *_: None), Reader("m", lambda *_: None)
    given_ = [(float(place), full(s), full(i), m, 0) for place, (s, i, m) in enumerate(calls)]
    one_by_one = [step for call in given_ for step in apart.read([call], 0.0)]
    assert shown(together.read(list(given_), 0.0)) == shown(one_by_one)


def shown(steps: list[Step]) -> str:
    """Return steps as text, whole numbers as floats: where all is plain, one stays what it was."""
    return re.sub(r"(?<![\w.])(\d+)(?![.\w])", r"\1.0", repr(steps))


@pytest.mark.parametrize("stats", [Quitting(), Raising(), object(), 7, "text", [], {}])
def test_a_step_that_cannot_be_read_costs_only_itself(stats: Any) -> None:
    queue, feed, aggregator = path()
    queue.record(stats, stats, stats, 0)
    queue.record(None, SimpleNamespace(num_generation_tokens=3), None, 0)
    feed.drain()
    assert total(aggregator, requests.GENERATION_TOKENS, "m", "0") == 3


def test_what_could_not_be_used_is_counted_and_named_once(caplog: pytest.LogCaptureFixture) -> None:
    queue, feed, aggregator = path()
    for _ in range(3):
        queue.record(None, SimpleNamespace(num_generation_tokens="many"), None, 0)
    feed.drain()
    assert aggregator.store[self_metrics.ERRORS].number((), ("0", "read")).value == 3
    lines = [record.getMessage() for record in caplog.records]
    (line,) = lines
    assert line.startswith(
        "vllm-vitals: vLLM gave SimpleNamespace.num_generation_tokens = 'many', expected a whole number of at most 62 bits"
    )


def test_what_cannot_be_shown_is_still_named(caplog: pytest.LogCaptureFixture) -> None:
    queue, feed, _ = path()
    queue.record(None, SimpleNamespace(num_preempted_reqs=Unprintable(), num_corrupted_reqs=10**9999), None, 0)
    feed.drain()
    shown = [record.getMessage() for record in caplog.records]
    assert "num_preempted_reqs = <Unprintable>" in shown[0]
    assert "num_corrupted_reqs = an integer of 33216 bits" in shown[1]


class NeverWhole(list[int]):
    """Fails when all of it is written down."""

    def __repr__(self) -> str:
        raise AssertionError("the whole was written down")


def test_of_a_large_value_no_more_is_looked_at_than_is_shown(caplog: pytest.LogCaptureFixture) -> None:
    queue, feed, _ = path()
    queue.record(None, SimpleNamespace(num_generation_tokens=NeverWhole(range(10_000))), None, 0)
    feed.drain()
    (line,) = [record.getMessage() for record in caplog.records]
    assert "num_generation_tokens = [0, 1, 2, 3," in line
    assert len(line) < 400


def test_each_stats_may_be_missing_in_every_combination() -> None:
    scheduler, iteration = SimpleNamespace(num_running_reqs=1), SimpleNamespace(num_generation_tokens=1)
    multimodal = SimpleNamespace(queries=2, hits=1)
    for s in (None, scheduler):
        for i in (None, iteration):
            for m in (None, multimodal):
                queue, feed, aggregator = path()
                queue.record(s, i, m, 0)
                feed.drain()
                assert total(aggregator, self_metrics.STEPS, "m", "0") == float(s is not None or i is not None)
                assert total(aggregator, requests.GENERATION_TOKENS, "m", "0") == float(i is not None)
