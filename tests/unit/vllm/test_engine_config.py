"""Facts are what vLLM was started with, by release, and nothing where it does not say."""

import os
import shutil
import subprocess
from types import SimpleNamespace as Section
from typing import Any

import pytest

from vllm_vitals.aggregation.aggregator import Aggregator
from vllm_vitals.catalog.buckets import FAMILIES
from vllm_vitals.catalog.engine import INFO
from vllm_vitals.config.settings import Settings
from vllm_vitals.records.step import Facts
from vllm_vitals.vllm.engine_config import api_server, engine_facts, model_name, process_age

VERSION = "0.32.0"


class Raising:
    """A section whose every field is a property that raises."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


def facts(engines: int = 1, **sections: Any) -> Facts:
    return engine_facts(Section(**sections), "0", engines, VERSION)


# The model's name


@pytest.mark.parametrize(
    ("served", "name"),
    [("m", "m"), (["first", "second"], "first"), (("first",), "first"), (None, "org/m"), ([], "org/m"), ("", "org/m"), (7, "7")],
)  # fmt: skip
def test_the_model_is_the_first_served_name(served: Any, name: str) -> None:
    assert model_name(Section(model_config=Section(served_model_name=served, model="org/m"))) == name


@pytest.mark.parametrize(
    "config", [None, Section(), Section(model_config=None), Section(model_config=Section()), Raising()], ids=range(5)
)
def test_a_model_without_a_name_is_unknown(config: Any) -> None:
    assert model_name(config) == "unknown"


# The KV cache


def test_the_size_that_vllm_tells_is_taken_as_it_is() -> None:
    cache = Section(kv_cache_size_tokens=48_000, num_gpu_blocks=99, block_size=16)
    assert facts(engines=4, cache_config=cache).kv_cache_tokens == 48_000


@pytest.mark.parametrize(("engines", "tokens"), [(1, 64_000), (2, 32_000), (4, 16_000), (0, 64_000)])
def test_blocks_of_all_engines_are_shared_out(engines: int, tokens: int) -> None:
    cache = Section(num_gpu_blocks=4000, block_size=16)
    assert facts(engines, cache_config=cache).kv_cache_tokens == tokens


@pytest.mark.parametrize(
    "fields",
    [{}, {"num_gpu_blocks": None, "block_size": 16}, {"num_gpu_blocks": 100, "block_size": None},
     {"num_gpu_blocks": 0, "block_size": 16}, {"num_gpu_blocks": -1, "block_size": 16},
     {"num_gpu_blocks": "100", "block_size": 16}, {"num_gpu_blocks": 100.0, "block_size": 16},
     {"kv_cache_size_tokens": 0}, {"kv_cache_size_tokens": True}],
)  # fmt: skip
def test_a_size_that_is_not_told_is_none(fields: dict[str, Any]) -> None:
    assert facts(cache_config=Section(**fields)).kv_cache_tokens is None


# Limits


def test_limits_are_those_of_the_scheduler_and_the_model() -> None:
    found = facts(
        scheduler_config=Section(max_num_seqs=128, max_num_batched_tokens=2048),
        model_config=Section(max_model_len=4096),
    )
    assert (found.max_num_seqs, found.max_num_batched_tokens, found.max_model_len) == (128, 2048, 4096)


@pytest.mark.parametrize("value", [None, 0, -1, "128", 1.5, True, []])
def test_a_limit_that_is_none_is_left_out(value: Any) -> None:
    assert facts(scheduler_config=Section(max_num_seqs=value)).max_num_seqs is None


# Buckets


def buckets(given: Any) -> dict[str, list[float]]:
    return facts(observability_config=Section(custom_histogram_buckets=given)).buckets


@pytest.mark.parametrize("family", FAMILIES)
def test_custom_buckets_of_every_family_are_taken(family: str) -> None:
    assert buckets({family: [1, 2.5, 10]}) == {family: [1.0, 2.5, 10.0]}


def test_custom_buckets_of_an_unknown_family_are_passed_over() -> None:
    assert buckets({"a_later_family": [1, 2], "step": [1, 2]}) == {"step": [1, 2]}


@pytest.mark.parametrize(
    "bounds", [[], [2, 1], [1, 1], [1, float("inf")], [float("nan")], ["fast"], None, 7, list(range(201))]
)
def test_wrong_custom_buckets_are_warned_of_and_cost_only_themselves(
    bounds: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert buckets({"request_latency": bounds, "step": [1, 2]}) == {"step": [1, 2]}
    (record,) = caplog.records
    assert record.getMessage().startswith("vllm-vitals: --custom-histogram-buckets request_latency is not used: ")


def test_wrong_custom_buckets_are_shown_bounded_and_clean(caplog: pytest.LogCaptureFixture) -> None:
    assert buckets({"request_latency": ["fast\n\x1b" + "x" * 9999]}) == {}
    (record,) = caplog.records
    assert record.getMessage().isprintable()
    assert len(record.getMessage()) < 500


@pytest.mark.parametrize("given", [None, [], "step", 7, {}, {7: [1, 2]}, {None: None}])
def test_no_custom_buckets(given: Any) -> None:
    assert buckets(given) == {}


# Features


@pytest.mark.parametrize(
    ("feature", "sections"),
    [
        ("pooling", {"model_config": Section(runner_type="pooling")}),
        ("iteration_details", {"observability_config": Section(enable_logging_iteration_details=True)}),
        ("cudagraph", {"observability_config": Section(cudagraph_metrics=True)}),
        ("mfu", {"observability_config": Section(enable_mfu_metrics=True)}),
        ("kv_residency", {"observability_config": Section(kv_cache_metrics=True)}),
        ("kv_connector", {"kv_transfer_config": Section(kv_connector="NixlConnector", is_kv_consumer=False)}),
        ("kv_consumer", {"kv_transfer_config": Section(is_kv_consumer=True)}),
        ("watermark", {"watermark_config": Section()}),
        ("lora", {"lora_config": Section()}),
        ("speculation", {"speculative_config": Section()}),
    ],
)
def test_a_feature_is_on_when_its_flag_is(feature: str, sections: dict[str, Any]) -> None:
    assert facts(**sections).features == {feature}


def test_no_feature_is_on_by_default() -> None:
    off = Section(
        enable_logging_iteration_details=False, cudagraph_metrics=False, enable_mfu_metrics=False, kv_cache_metrics=False
    )  # fmt: skip
    found = facts(
        model_config=Section(runner_type="generate"), observability_config=off, kv_transfer_config=None,
        lora_config=None, speculative_config=None, watermark_config=None,
    )  # fmt: skip
    assert found.features == frozenset()


@pytest.mark.parametrize("variable", ["VLLM_COMPUTE_NANS_IN_LOGITS", "VLLM_RAISE_ON_LOGIT_NANS"])
@pytest.mark.parametrize(("value", "on"), [("1", True), ("0", False), ("", False)])
def test_a_search_for_nans_is_seen_in_the_environment(
    variable: str, value: str, on: bool, monkeypatch: pytest.MonkeyPatch  # noqa: FBT001
) -> None:  # fmt: skip
    monkeypatch.setenv(variable, value)
    assert ("nan_check" in facts().features) is on


# Labels of the information


def test_information_is_the_words_that_vllm_takes() -> None:
    class DType:
        def __str__(self) -> str:
            return "torch.bfloat16"

    found = facts(
        model_config=Section(dtype=DType(), quantization=None, runner_type="generate", max_model_len=4096),
        cache_config=Section(block_size=16, cache_dtype="auto", enable_prefix_caching=True),
        parallel_config=Section(tensor_parallel_size=2, pipeline_parallel_size=1, data_parallel_size=4),
        scheduler_config=Section(enable_chunked_prefill=False),
        speculative_config=Section(method="ngram"),
        kv_transfer_config=Section(kv_connector="NixlConnector", kv_role="kv_both"),
    )
    assert found.info == {
        "vllm_version": VERSION, "dtype": "bfloat16", "runner": "generate", "max_model_len": "4096",
        "block_size": "16", "kv_cache_dtype": "auto", "prefix_caching": "true", "tensor_parallel_size": "2",
        "pipeline_parallel_size": "1", "data_parallel_size": "4", "chunked_prefill": "false",
        "speculative_method": "ngram", "kv_connector": "NixlConnector", "kv_role": "kv_both",
    }  # fmt: skip


@pytest.mark.parametrize("role", ["kv_producer", "kv_consumer", "kv_both"])
def test_the_role_in_disaggregated_serving_is_told(role: str) -> None:
    consumes = role != "kv_producer"
    section = Section(kv_connector="NixlConnector", kv_role=role, is_kv_consumer=consumes)
    found = facts(kv_transfer_config=section)
    assert (found.info["kv_role"], found.info["kv_connector"]) == (role, "NixlConnector")
    assert found.features == {"kv_connector", *(["kv_consumer"] if consumes else [])}
    aggregator = Aggregator(Settings())
    aggregator.add([found])
    (key,) = aggregator.store[INFO].cells
    assert dict(zip(INFO.labelnames, key, strict=True))["kv_role"] == role


@pytest.mark.parametrize(
    "sections", [{}, {"kv_transfer_config": None}, {"kv_transfer_config": Section(kv_connector=None, kv_role=None)}]
)
def test_an_engine_that_serves_alone_has_no_role(sections: dict[str, Any]) -> None:
    found = facts(**sections)
    assert not {"kv_role", "kv_connector"} & found.info.keys()
    assert found.features == frozenset()


def test_information_that_is_not_there_has_no_label() -> None:
    assert facts().info == {"vllm_version": VERSION}


@pytest.mark.parametrize("config", [None, 7, "text", object(), Raising()], ids=range(5))
def test_an_odd_configuration_has_no_facts(config: Any) -> None:
    found = engine_facts(config, "0", 1, VERSION)
    assert (found.model, found.engine, found.info) == ("unknown", "0", {"vllm_version": VERSION})
    assert (found.max_num_seqs, found.kv_cache_tokens, found.buckets, found.features) == (None, None, {}, frozenset())


@pytest.mark.parametrize(
    "section",
    ["model_config", "cache_config", "scheduler_config", "parallel_config", "observability_config", "kv_transfer_config",
     "speculative_config"],
)  # fmt: skip
def test_a_section_that_raises_costs_only_itself(section: str) -> None:
    given = {
        "model_config": Section(served_model_name="m", max_model_len=64),
        "cache_config": Section(num_gpu_blocks=10, block_size=16),
        "scheduler_config": Section(max_num_seqs=8),
        "observability_config": Section(cudagraph_metrics=True),
    }
    whole, part = facts(**given), facts(**{**given, section: Raising()})
    lost = {
        "model_config": {"model", "max_model_len"}, "cache_config": {"kv_cache_tokens"},
        "scheduler_config": {"max_num_seqs"}, "observability_config": {"features"}, "speculative_config": {"features"},
    }.get(section, set())  # fmt: skip
    for name in {"model", "max_model_len", "kv_cache_tokens", "max_num_seqs", "features"} - lost:
        assert getattr(part, name) == getattr(whole, name), name


class Words:
    """Cannot be put into words."""

    def __str__(self) -> str:
        raise RuntimeError


def test_a_value_without_words_costs_only_its_label() -> None:
    found = facts(
        model_config=Section(served_model_name="m", quantization=Words()), cache_config=Section(block_size=16)
    )
    assert (found.model, found.info) == (
        "m",
        {"vllm_version": VERSION, "block_size": "16", "quantization": "unknown"},
    )


def test_a_name_without_words_is_unknown() -> None:
    assert model_name(Section(model_config=Section(served_model_name=Words()))) == "unknown"


# The process


@pytest.mark.parametrize(
    ("fields", "server"),
    [({"_api_process_rank": 2, "_api_process_count": 4}, (2, 4)), ({"_api_process_rank": -1, "_api_process_count": 0}, (0, 1)),
     ({"_api_process_rank": None}, (0, 1)), ({}, (0, 1)), ({"_api_process_rank": "1", "_api_process_count": "2"}, (0, 1)),
     ({"_api_process_rank": True, "_api_process_count": True}, (0, 1))],
)  # fmt: skip
def test_the_rank_of_an_api_server(fields: dict[str, Any], server: tuple[int, int]) -> None:
    assert api_server(Section(parallel_config=Section(**fields))) == server


@pytest.mark.skipif(shutil.which("ps") is None, reason="needs ps")
def test_the_age_of_the_process_is_what_the_system_says() -> None:
    before = process_age()
    told = subprocess.run(["ps", "-o", "etimes=", "-p", str(os.getpid())], capture_output=True, text=True, check=True)
    assert before - 2.5 <= float(told.stdout) <= process_age() + 2.5


def test_the_age_of_the_process_only_grows() -> None:
    ages = [process_age() for _ in range(100)]
    assert ages == sorted(ages)


def test_startup_is_the_age_of_the_process() -> None:
    assert facts().startup == pytest.approx(process_age(), abs=1.0)


def test_a_process_without_proc_still_has_an_age(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise FileNotFoundError

    monkeypatch.setattr("builtins.open", fail)
    assert 0 <= process_age() < 3600
