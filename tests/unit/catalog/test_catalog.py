"""The catalogue: every metric is declared soundly, and under a name that nothing else has."""

import re
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any

import numpy as np

from tests.unit.native_vllm import DECLARED, KINDS
from vllm_vitals.catalog import CATALOG, GROUPS, Gauge, Histogram, Metric, Scope
from vllm_vitals.catalog.buckets import FAMILIES
from vllm_vitals.catalog.cache import FREE_SEQUENCES, TIME_TO_FULL
from vllm_vitals.catalog.connectors import USAGE
from vllm_vitals.catalog.engine import MEMORY_TRAFFIC_UTILIZATION, MFU, SATURATION
from vllm_vitals.catalog.metric import reader
from vllm_vitals.catalog.names import PER, UNITS
from vllm_vitals.records.gpu import Sample
from vllm_vitals.records.request_batch import Requests
from vllm_vitals.records.step import Facts, Finished, Health, Rejection, Sleep, Step
from vllm_vitals.vllm.engine_config import _features

VLLM_COUNTERS, VLLM_GAUGES, VLLM_HISTOGRAMS = (
    [name for name, declared in DECLARED.items() if declared.kind is kind] for kind in KINDS.values()
)
"""Every metric of vLLM 0.11.0 to 0.33.0, as it is named in vLLM's source (without the prefix)."""

EMPTY = {
    Step: Step("m", "0", 1.0, 1.0, 1.0), Finished: Requests([Finished("stop", duration=0.0)]), Facts: Facts("m", "0"), Health: Health(),
    Sleep: Sleep("m", "0", "awake"), Rejection: Rejection("m", "full"), Sample: Sample(1.0, 1.0, []),
}  # fmt: skip


def sample_names(metric: Metric[Any]) -> set[str]:
    """Return every name that a metric takes on a page: of its family (either format) and of its samples."""
    name = metric.prometheus
    if metric.kind == "counter":
        return {name, name.removesuffix("_total"), name.removesuffix("_total") + "_created"}
    if metric.kind == "histogram":
        return {name, *(f"{name}_{suffix}" for suffix in ("bucket", "sum", "count", "created"))}
    return {name}


def vllm_sample_names() -> set[str]:
    """Return every name that vLLM's metrics take on a page, as a rewriting of colons to underscores leaves it."""
    plain = chain(VLLM_COUNTERS, VLLM_GAUGES, VLLM_HISTOGRAMS)
    counters = chain.from_iterable(
        (stem, f"{stem}_total", f"{stem}_created") for stem in (name.removesuffix("_total") for name in VLLM_COUNTERS)
    )
    histograms = (f"{name}_{suffix}" for name in VLLM_HISTOGRAMS for suffix in ("bucket", "sum", "count", "created"))
    return {f"vllm_{name}" for name in chain(plain, counters, histograms)}


def test_no_two_metrics_share_a_name_on_the_page() -> None:
    tally = Tally(chain.from_iterable(map(sample_names, CATALOG)))
    assert [name for name, times in tally.items() if times > 1] == []


def test_no_two_metrics_share_an_opentelemetry_name() -> None:
    assert len({metric.name for metric in CATALOG}) == len(CATALOG)


def test_no_name_equals_a_vllm_name_with_its_colon_rewritten() -> None:
    taken = vllm_sample_names()
    assert len(taken) > 300
    assert {name for metric in CATALOG for name in sample_names(metric)} & taken == set()


def test_every_metric_is_in_one_group() -> None:
    assert list(CATALOG) == [metric for group in GROUPS.values() for metric in group]


def broken(rule: Callable[[Metric[Any]], bool], metrics: Iterable[Metric[Any]] = CATALOG) -> list[str]:
    """Return the names of the metrics that break a rule."""
    return [metric.name for metric in metrics if not rule(metric)]


def test_names_are_dotted_lower_case() -> None:
    assert not broken(lambda m: bool(re.fullmatch(r"(vllm|vitals|gen_ai|hw)(\.[a-z][a-z0-9_]*)+", m.name)))


def test_names_hold_no_unit_or_total() -> None:
    words = {"total", "ratio", "seconds", "bytes", "percent", "count", "bucket", "sum", "created"}
    assert not broken(lambda m: not words & set(re.split(r"[._]", m.name)))


def test_prometheus_names_are_plain() -> None:
    assert not broken(lambda m: bool(re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", m.prometheus)))


def test_prometheus_names_tell_kind_and_unit() -> None:
    assert not broken(lambda m: m.prometheus.endswith("_total") == (m.kind == "counter"))
    with_unit = [metric for metric in CATALOG if metric.prometheus_unit]
    assert not broken(lambda m: m.prometheus.removesuffix("_total").endswith(f"_{m.prometheus_unit}"), with_unit)


def test_every_unit_has_a_prometheus_word() -> None:
    def translates(unit: str) -> bool:
        main, _, per = unit.partition("/")
        return per in {"", *PER} and (main in {"", "1", *UNITS} or bool(re.fullmatch(r"\{[a-z_]+\}", main)))

    assert not broken(lambda m: translates(m.unit))


def test_helps_are_sentences() -> None:
    assert not broken(lambda m: bool(re.fullmatch(r"[A-Z0-9].*\S\.", m.help)))


def test_label_names_are_legal_and_distinct() -> None:
    reserved = {"le", "quantile", "job", "instance"}
    assert not broken(lambda m: all(re.fullmatch(r"[a-z][a-z0-9_]*", name) for name in m.prometheus_labels))
    assert not broken(lambda m: not reserved & set(m.prometheus_labels))
    assert not broken(lambda m: len(set(m.prometheus_labels)) == len(m.prometheus_labels))


def test_labels_are_bounded() -> None:
    assert not broken(lambda m: all(0 < label.cap <= 200 for label in m.labels))
    assert not broken(lambda m: all(len(set(label.values)) == len(label.values) for label in m.labels))


def test_series_carry_model_and_engine_or_the_labels_of_the_convention() -> None:
    engine = [metric for metric in CATALOG if metric.scope is Scope.ENGINE]
    assert not broken(lambda m: m.prometheus_labels[:2] == ("model_name", "engine"), engine)
    assert not broken(lambda m: (m.scope is Scope.CONVENTION) == m.name.startswith("gen_ai."))


def test_bucket_families_exist_and_fit_the_unit() -> None:
    histograms = [metric for metric in CATALOG if isinstance(metric, Histogram)]
    assert {metric.buckets for metric in histograms} <= set(FAMILIES)
    assert not broken(lambda m: (m.unit == "{token}") == (m.buckets.endswith("_tokens")), histograms)


def test_needed_features_are_features_of_an_engine() -> None:
    assert {metric.needs for metric in CATALOG} - {""} <= set(_features(None))


def test_since_is_a_release() -> None:
    assert not broken(lambda m: bool(re.fullmatch(r"(\d+\.\d+\.\d+)?", m.since)))


def natives(metric: Metric[Any]) -> set[str]:
    """Return vLLM's names for a metric; `{a,b}` and `[optional]` stand for several."""
    name = metric.vllm_name.removeprefix("vllm:")
    if braced := re.search(r"\{(.*)\}", name):
        return {name.replace(braced[0], word) for word in braced[1].split(",")}
    if optional := re.search(r"\[(.*)\]", name):
        return {name.replace(optional[0], ""), name.replace(optional[0], optional[1])}
    return {name} - {""}


def test_native_names_exist_in_vllm() -> None:
    known = {*VLLM_COUNTERS, *VLLM_GAUGES, *VLLM_HISTOGRAMS}
    assert not broken(lambda m: m.vllm_name == "" or m.vllm_name.startswith("vllm:"))
    assert not broken(lambda m: natives(m) <= known)


def says_something(metric: Metric[Any]) -> bool:
    """Tell whether a metric reads anything but zeros from an empty record."""
    read = reader(metric.read)(EMPTY[metric.record])
    values = read.values() if isinstance(read, Mapping) else [read]
    return any(bool(np.any(np.nan_to_num(value))) for value in values if value is not None)


def test_an_empty_record_reads_as_zero_or_nothing() -> None:
    always = ("vllm.requests.finished", "vllm.engine.info")
    read = [metric for metric in CATALOG if metric.record not in (None, Sleep, Rejection) and metric.name not in always]
    assert not broken(lambda m: not says_something(m), read)


def test_the_maximum_of_a_record_can_be_read() -> None:
    with_ceiling = [metric for metric in CATALOG if isinstance(metric, Histogram) and metric.max_from_record]
    assert with_ceiling
    assert not broken(lambda m: np.all(reader(m.max_from_record)(EMPTY[m.record]) >= 0), with_ceiling)


def test_gauges_of_steps_expire_and_no_others() -> None:
    gauges = [metric for metric in CATALOG if isinstance(metric, Gauge)]
    kept = (
        FREE_SEQUENCES,
        TIME_TO_FULL,
        SATURATION,
        MFU,
        MEMORY_TRAFFIC_UTILIZATION,
        USAGE,
    )  # written by the aggregator, from steps
    assert not broken(lambda m: m.expires == (m.record is Step or m in kept), gauges)


def test_a_scope_holds_its_labels() -> None:
    assert [type(scope.value) for scope in Scope] == [tuple] * len(Scope)
    assert Scope.PROCESS.value == ()
    assert Scope.ENGINE.value == ("model_name", "engine")
