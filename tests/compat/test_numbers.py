"""Our logger and vLLM's own, run side by side over the real stats of every release, show the same numbers."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tests.compat.calls import Call, Scenario
from tests.compat.configs import make_config
from tests.compat.frontend import Frontend, Output
from tests.compat.oracle import Oracle
from tests.compat.releases import Release
from tests.compat.scenarios import SCENARIOS, busy
from tests.parity import Samples, differences, parse, value
from vllm_vitals.aggregation.aggregator import Aggregator
from vllm_vitals.config.settings import Settings
from vllm_vitals.deployment import runtime
from vllm_vitals.deployment.collector_server import CollectorServer
from vllm_vitals.exporters.prometheus.registry import VitalsCollector
from vllm_vitals.vllm.reader import Reader

INVENTED = {
    "cut_off": {"vllm:request_queue_time_seconds", "vllm:time_to_first_token_seconds", "vllm:request_prefill_time_seconds",
                "vllm:request_inference_time_seconds", "vllm:request_decode_time_seconds"},
    "engine_without_stats": {"vllm:request_queue_time_seconds", "vllm:request_prefill_time_seconds",
                             "vllm:request_inference_time_seconds"},
}  # fmt: skip
"""What vLLM says of milestones that were never reached, and we do not."""
MOVING = (
    "vitals_hook", "vitals_series", "vitals_step_age", "vllm_engine_imbalance", "vllm_engine_limited", "vllm_engine_saturation", "vllm_engine_startup",
    "vllm_engine_gpu_time", "vllm_engine_cost", "vllm_kv_cache_time_to_full", "vllm_step_interval", "vllm_step_processing",
)  # fmt: skip
"""Metrics that tell of the time that a replay takes."""


def apart(release: Release, name: str) -> set[str]:
    """Return the metrics in which a release means something else than we do."""
    found = set(INVENTED.get(name, ()))
    if not release.at_least("0.23.0"):
        found.add("vllm:iteration_tokens_total")  # counts cached tokens too
    if release.at_least("0.16.0") and not release.at_least("0.20.0"):
        found.add("vllm:prompt_tokens_by_source_total")  # counts recomputed tokens twice
    return found


@contextmanager
def ours(release: Release, config: Any, engines: list[int]) -> Iterator[Any]:
    """Give our logger in a process that has no other, on a port of the system's choice."""
    alone = {"OTEL_EXPORTER_PROMETHEUS_PORT": "0", "VITALS_GPU__ENABLED": "false"}
    with mock.patch.dict(os.environ, alone), release.installed():
        logger = release.load("vllm_vitals.plugin").PrometheusVitals(vllm_config=config, engine_indexes=engines)
        logger.log_engine_initialized()
        host = runtime.runtime()
        try:
            yield SimpleNamespace(logger=logger, host=host)
        finally:
            host.stop()
            runtime._runtime = None


def page(registry: Any) -> Samples:
    return parse(generate_latest(registry).decode())


@contextmanager
def sidecar() -> Iterator[tuple[Aggregator, CollectorServer]]:
    """Give a collector in the place of a sidecar's, to which our logger sends what it is told."""
    aggregator = Aggregator(Settings())
    with TemporaryDirectory() as directory:
        host = CollectorServer(aggregator, Path(directory, "wire", "vitals.sock"))
        host.start({})
        try:
            with mock.patch.dict(os.environ, {"VITALS_WIRE__SIDECAR": str(host.socket)}):
                yield aggregator, host
        finally:
            host.stop()


def replay(release: Release, scenario: Scenario, calls: list[Call]) -> tuple[Samples, Samples]:
    """Return what vLLM's logger and ours show of the same calls."""
    config = make_config(release, **scenario.config)
    engines = sorted(scenario.totals) or [0]
    with mock.patch.dict(os.environ, scenario.environment):
        oracle = Oracle(release, config, engines).replay(calls)
        with ours(release, config, engines) as mine:
            for call in calls:
                call.apply(mine.logger)
            mine.host.drainer.drain()
            return page(oracle.registry), shown_of(mine.host.aggregator)


def replay_afar(release: Release, scenario: Scenario) -> Samples:
    """Return what a sidecar shows of a scenario's calls."""
    config = make_config(release, **scenario.config)
    with mock.patch.dict(os.environ, scenario.environment), sidecar() as (aggregator, host):
        with ours(release, config, sorted(scenario.totals) or [0]) as mine:
            for call in scenario.calls:
                call.apply(mine.logger)
        host.stop(farewell=5.0)
        return shown_of(aggregator)


def shown_of(aggregator: Aggregator) -> Samples:
    registry = CollectorRegistry()
    registry.register(VitalsCollector(aggregator))
    return page(registry)


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_counts_as_vllm_counts_in_a_serving_process_and_in_a_sidecar(
    release: Release, name: str
) -> None:
    with release.installed():
        scenario = SCENARIOS[name](release)
    if scenario is None:
        pytest.skip(f"vLLM {release.version} does not report this")
    native, here = replay(release, scenario, scenario.calls)
    assert list(differences(native, here, apart=apart(release, name))) == []
    assert value(here, "vitals_errors_total") == 0
    there = replay_afar(release, scenario)
    for each in (here, there):
        for moving in [family for family in each if family.startswith(MOVING)]:
            del each[moving]
    assert there == here


def test_random_traffic_counts_as_vllm_counts(
    release: Release, seed: int, effort: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And each request has one first token, and a latency for every output after it."""
    seen: list[tuple[bool, int]] = []
    process = Frontend._process

    def watch(self: Frontend, output: Output, at: float, iteration: Any) -> None:
        seen.append((output.request.is_prefilling, output.tokens))
        process(self, output, at, iteration)

    monkeypatch.setattr(Frontend, "_process", watch)
    for each in range(seed, seed + (1 if effort == "test" else 10)):
        seen.clear()
        with release.installed():
            scenario = busy(release, each)
        native, shown = replay(release, scenario, scenario.calls)
        assert list(differences(native, shown, apart=apart(release, "busy"))) == [], f"seed {each}"
        assert value(shown, "vitals_steps_total") > 0
        firsts = sum(first for first, _ in seen)
        assert 0 < firsts < len(seen)
        assert value(shown, "vllm_request_time_to_first_token_seconds_count") == firsts
        assert value(shown, "vllm_request_inter_token_latency_seconds_count") == len(seen) - firsts
        assert value(shown, "vllm_tokens_generation_total") == sum(tokens for _, tokens in seen)
        assert value(shown, "vllm_requests_finished_total") <= firsts


def test_chunks_of_a_prompt_add_up_to_it(release: Release) -> None:
    scenario = SCENARIOS["chunked_prefill"](release)
    assert scenario is not None
    _, shown = replay(release, scenario, scenario.calls)
    assert value(shown, "vllm_tokens_prompt_total") == 12 + 11 + 4
    assert value(shown, "vllm_step_scheduled_tokens_total", phase="prefill") == 12 + 11 + 4


def test_sources_add_up_to_the_prompts(release: Release) -> None:
    scenario = SCENARIOS["whole_prompt_cached"](release)
    assert scenario is not None
    _, shown = replay(release, scenario, scenario.calls)
    assert value(shown, "vllm_tokens_prompt_total") == 65


def test_a_request_cut_off_before_its_first_token_has_no_latency(release: Release) -> None:
    scenario = SCENARIOS["cut_off"](release)
    assert scenario is not None
    _, shown = replay(release, scenario, scenario.calls)
    assert value(shown, "vllm_requests_finished_total", finish_reason="abort") == 1
    assert value(shown, "vllm_request_duration_seconds_count") == 1
    for name in ("time_to_first_token", "inference_duration", "mean_time_per_output_token"):
        assert value(shown, f"vllm_request_{name}_seconds_count") == 0
    assert value(shown, "vllm_request_phase_duration_seconds_count", phase="prefill") == 0


def test_times_since_the_boot_of_the_host_are_refused(release: Release) -> None:
    scenario = SCENARIOS["engine_without_stats"](release)
    assert scenario is not None
    _, shown = replay(release, scenario, scenario.calls)
    assert value(shown, "vllm_request_phase_duration_seconds_count", phase="prefill") == 0
    assert value(shown, "vllm_request_phase_duration_seconds_count", phase="queue") == 0
    refused = value(shown, "vitals_values_rejected_total", metric="vllm.request.inference.duration", reason="absurd")
    assert refused == 1


def test_adapters_are_shown_as_the_scheduler_stats_name_them(release: Release) -> None:
    scenario = SCENARIOS["adapters"](release)
    assert scenario is not None
    _, shown = replay(release, scenario, scenario.calls)
    totals = scenario.totals[0]
    for state, expected in (("running", totals.lora_running), ("waiting", totals.lora_waiting)):
        for adapter, count in expected.items():
            assert value(shown, "vllm_lora_requests", adapter=adapter, state=state) == count


@pytest.mark.parametrize(
    ("name", "metric", "totals"),
    [
        ("iteration_details", "vllm_step_duration_seconds_sum", "step_seconds"),
        ("cuda_graphs", "vllm_cuda_graph_tokens_total", ("graph_padded", "graph_unpadded")),
    ],
)
def test_what_vllm_logs_but_does_not_export(release: Release, name: str, metric: str, totals: Any) -> None:
    scenario = SCENARIOS[name](release)
    if scenario is None:
        pytest.skip(f"vLLM {release.version} does not report this")
    _, shown = replay(release, scenario, scenario.calls)
    if isinstance(totals, tuple):
        expected = sum(getattr(scenario.totals[0], each) for each in totals)
    else:
        expected = sum(getattr(scenario.totals[0], totals))
    assert value(shown, metric) == pytest.approx(expected)


def test_the_real_loader_and_manager_take_our_class(release: Release) -> None:
    config = make_config(release)
    with ours(release, config, [0]) as mine, release.installed():
        loggers = release.load("vllm.v1.metrics.loggers")
        assert isinstance(mine.logger, loggers.AggregateStatLoggerBase)
        plugin = {"vitals_prometheus": type(mine.logger)}
        with mock.patch.object(loggers, "load_plugins_by_group", return_value=plugin):
            assert loggers.load_stat_logger_plugin_factories() == [type(mine.logger)]
        bound = oracle_free(release)
        manager = loggers.StatLoggerManager(
            vllm_config=config, engine_idxs=[0], custom_stat_loggers=[type(mine.logger), bound],
            enable_default_loggers=False,
        )  # fmt: skip
        manager.log_engine_initialized()
        manager.record(None, None, mm_cache_stats=None, engine_idx=0)
        manager.log()
        manager.record_sleep_state(1, 1)
        if release.at_least("0.32.0"):
            manager.record_admission_rejection("max_num_queued_reqs")


def oracle_free(release: Release) -> type:
    """Return vLLM's own logger, over a registry that no other test sees."""
    from tests.compat.oracle import oracle_class

    return oracle_class(release, CollectorRegistry())


def test_latencies_that_are_one_number_are_read_as_one(release: Release) -> None:
    scenario = SCENARIOS["crowd"](release)
    assert scenario is not None
    _, decoding, *_ = scenario.calls
    (step,) = Reader("m", lambda *_: None).read([(0.0, None, decoding.iteration_stats, None, 0)], 0.0)
    assert (list(step.inter_token_latencies or ()), step.inter_token_repeats) == ([0.25], 100)
