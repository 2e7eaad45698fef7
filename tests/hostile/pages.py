"""What holds of every page and every push, whatever was told before."""

import math
from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.samples import Sample

from tests.unit.otlp import decoded, points
from vllm_vitals.aggregation.aggregator import Aggregator
from vllm_vitals.exporters.otlp.encode import PushBuilder
from vllm_vitals.exporters.prometheus.text import END, Renderer

Series = tuple[str, frozenset[tuple[str, str]]]
Numbers = dict[Series, float]
PARSERS = {False: parse_text, True: parse_openmetrics}
GROWING = ("_total", "_bucket", "_count", "_sum")
MOST_EXEMPLAR = 128
"""Characters of the label names and values of an exemplar, by OpenMetrics."""


class Pages:
    """Renders one collector's pages in one format."""

    def __init__(self, aggregator: Aggregator, *, openmetrics: bool) -> None:
        self._aggregator = aggregator
        self._openmetrics = openmetrics
        self._renderer = Renderer(aggregator.store, openmetrics=openmetrics)
        self._before: Numbers = {}

    def render(self) -> bytes:
        """Return the next page."""
        self._aggregator.refresh()
        self._renderer.forget()
        return b"".join(self._renderer.render()) + (END if self._openmetrics else b"")

    def next(self) -> Numbers:
        """Return the numbers of the next page, after checking all that holds of any."""
        page = self.render()
        assert b"\0" not in page
        found = list(PARSERS[self._openmetrics](page.decode("utf-8")))
        samples = [sample for family in found for sample in family.samples]
        numbers = {(each.name, frozenset(each.labels.items())): each.value for each in samples}
        assert len(numbers) == len(samples), "a series is on the page twice"
        check(numbers)
        check_exemplars(samples)
        for series in self._before.keys() & numbers.keys():
            if series[0].endswith(GROWING):
                assert numbers[series] >= self._before[series], f"{series} fell"
        self._before = numbers
        return numbers


def check(numbers: Numbers) -> None:
    """Raise unless all numbers of a page can be true beside each other."""
    for series, value in numbers.items():
        assert math.isfinite(value), series
        assert value >= 0, series
        name, labels = series
        if name.endswith("_bucket") and ("le", "+Inf") in labels:
            count = name.removesuffix("_bucket") + "_count", labels - {("le", "+Inf")}
            assert numbers[count] == value, series
    for cache in ("vllm_prefix_cache", "vllm_multimodal_cache"):
        lookups = "queried_tokens" if cache == "vllm_prefix_cache" else "queries"
        hits = "hit_tokens" if cache == "vllm_prefix_cache" else "hits"
        for _, labels in [series for series in numbers if series[0] == f"{cache}_{hits}_total"]:
            assert numbers[f"{cache}_{hits}_total", labels] <= numbers[f"{cache}_{lookups}_total", labels]
    judged = total(numbers, "vllm_slo_requests_total") + total(numbers, "vllm_slo_excluded_total")
    slos = {dict(labels)["slo"] for name, labels in numbers if name == "vllm_slo_requests_total"}
    assert judged == len(slos) * total(numbers, "vllm_requests_finished_total")


def total(numbers: Numbers, name: str, **labels: str) -> float:
    """Return the sum of all series of a name that have these labels."""
    return sum(value for (each, has), value in numbers.items() if each == name and labels.items() <= has)


def check_exemplars(samples: Iterable[Sample]) -> None:
    for sample in samples:
        if sample.exemplar:
            said = sample.exemplar.labels
            assert sum(len(name) + len(value) for name, value in said.items()) <= MOST_EXEMPLAR
            assert sample.exemplar.value >= 0


class Pushes:
    """Builds pushes of one collector's store, each acknowledged."""

    def __init__(self, aggregator: Aggregator, **how: Any) -> None:
        self._aggregator = aggregator
        self._builder = PushBuilder(aggregator.store, started=1.0, fresh=60.0, **how)

    def build(self) -> Any:
        """Return the next push, unchecked."""
        return self._builder.build()

    def next(self) -> Numbers:
        """Return the sums of the next push, after checking all that holds of any."""
        self._aggregator.refresh()
        push = self._builder.build()
        numbers: Numbers = {}
        for where, point in points(decoded(push)).items():
            numbers[where] = check_point(point, where)
        self._builder.acknowledge(push)
        return numbers


def check_point(point: Any, where: Series) -> float:
    """Raise unless a point can be true, and return its value, a histogram's count."""
    if hasattr(point, "as_double"):
        assert math.isfinite(point.as_double), where
        assert point.as_double >= 0, where
        return float(point.as_double)
    assert math.isfinite(point.sum), where
    assert point.sum >= 0, where
    if hasattr(point, "bucket_counts"):
        counted = sum(point.bucket_counts)
    else:
        counted = point.zero_count + sum(point.positive.bucket_counts)
    assert counted == point.count, where
    return float(point.count)


def readable(page: bytes) -> Iterator[str]:
    """Yield the lines of a page that hold samples."""
    yield from (line for line in page.decode("utf-8").split("\n") if line and not line.startswith("#"))
