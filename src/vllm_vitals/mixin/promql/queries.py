"""Queries of catalogue metrics, against our own series or against vLLM's."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from vllm_vitals.catalog import Metric
from vllm_vitals.mixin.promql import parts
from vllm_vitals.mixin.promql.functions import aggregated, call, ratio, relabelled, sum_by
from vllm_vitals.mixin.promql.matchers import TARGET_LABELS, Match, Wanted, check_labels, check_values, match
from vllm_vitals.mixin.promql.vector import Vector, number

Source = Literal["vitals", "native"]
Histograms = Literal["explicit", "exponential"]
By = Collection[str]


@dataclass(frozen=True)
class Queries:
    """Makes PromQL of metrics of the catalogue.

    A label that a metric does not have, or a value that its label cannot have, is a `ValueError`; with the source
    `native`, so is a metric that vLLM lacks (`Unavailable`). `scope` holds matchers that every query gets, each where
    the metric has the label. Nothing here yields NaN when there is no traffic: there is no series then.
    """

    window: str = "$__rate_interval"
    scope: Mapping[str, Wanted] = field(default_factory=dict)
    source: Source = "vitals"
    histograms: Histograms = "explicit"
    targets: Collection[str] = TARGET_LABELS
    """Labels that a scrape or a receiver adds to each series."""

    def over(self, window: str) -> "Queries":
        """Return the same with another window, such as `5m`."""
        return replace(self, window=window)

    def within(self, **scope: Wanted) -> "Queries":
        """Return the same with more matchers for every query."""
        return replace(self, scope={**self.scope, **scope})

    def select(self, metric: Metric[Any], /, *, offset: str = "", **wanted: Wanted) -> Vector:
        """Return the series of a counter or gauge as they are."""
        _expect(metric, "counter", "gauge")
        return self._leaf(metric, "", lambda series: series + _offset(offset), wanted, metric.prometheus_labels)

    def sum(self, metric: Metric[Any], /, by: By = (), **wanted: Wanted) -> Vector:
        """Return a gauge summed by labels."""
        return self.gauge("sum", metric, by, **wanted)

    def max(self, metric: Metric[Any], /, by: By = (), **wanted: Wanted) -> Vector:
        """Return the largest of a gauge by labels."""
        return self.gauge("max", metric, by, **wanted)

    def min(self, metric: Metric[Any], /, by: By = (), **wanted: Wanted) -> Vector:
        """Return the smallest of a gauge by labels."""
        return self.gauge("min", metric, by, **wanted)

    def avg(self, metric: Metric[Any], /, by: By = (), **wanted: Wanted) -> Vector:
        """Return the mean of a gauge by labels."""
        return self.gauge("avg", metric, by, **wanted)

    def count(self, metric: Metric[Any], /, by: By = (), **wanted: Wanted) -> Vector:
        """Return how many series a gauge has, by labels."""
        return self.gauge("count", metric, by, **wanted)

    def gauge(self, operator: str, metric: Metric[Any], /, by: By = (), **wanted: Wanted) -> Vector:
        """Return a gauge under an aggregation, by labels."""
        _expect(metric, "gauge")
        return aggregated(operator, self._leaf(metric, "", str, wanted, by), by)

    def rate(self, metric: Metric[Any], /, by: By = (), **wanted: Wanted) -> Vector:
        """Return what a counter grows by in a second, by labels."""
        _expect(metric, "counter")
        return sum_by(self._leaf(metric, "", self._ranged("rate"), wanted, by), *by)

    def increase(self, metric: Metric[Any], /, by: By = (), **wanted: Wanted) -> Vector:
        """Return what a counter grew by in the window, by labels."""
        _expect(metric, "counter")
        return sum_by(self._leaf(metric, "", self._ranged("increase"), wanted, by), *by)

    def ranged(self, function: str, metric: Metric[Any], /, *arguments: float, **wanted: Wanted) -> Vector:
        """Return a function of each series over the window: `max_over_time`, `changes`, `delta`, `predict_linear`."""
        _expect(metric, "counter", "gauge")
        return self._leaf(metric, "", self._ranged(function, *arguments), wanted, metric.prometheus_labels)

    def share(self, metric: Metric[Any], /, of: Mapping[str, Wanted], by: By = (), **wanted: Wanted) -> Vector:
        """Return which part of what a counter grew by has some label values."""
        return ratio(self.rate(metric, by, **{**wanted, **of}), self.rate(metric, by, **wanted))

    def observed(self, metric: Metric[Any], /, by: By = (), **wanted: Wanted) -> Vector:
        """Return how many values a histogram takes in a second, by labels."""
        return self._distribution("count", metric, by, wanted)

    def total(self, metric: Metric[Any], /, by: By = (), **wanted: Wanted) -> Vector:
        """Return what the values that a histogram takes in a second add up to, by labels."""
        return self._distribution("sum", metric, by, wanted)

    def mean(self, metric: Metric[Any], /, by: By = (), **wanted: Wanted) -> Vector:
        """Return the mean of a histogram's values over the window, by labels."""
        return ratio(self.total(metric, by, **wanted), self.observed(metric, by, **wanted))

    def quantile(self, rank: float, metric: Metric[Any], /, by: By = (), **wanted: Wanted) -> Vector:
        """Return a quantile of a histogram's values over the window, by labels."""
        if not 0 < rank < 1:
            raise ValueError(f"{rank} is no rank of a quantile; it must be between 0 and 1")
        buckets = self._buckets("rate", metric, by, wanted)
        found = Vector(f"histogram_quantile({number(rank)}, {buckets})", frozenset(by))
        return found >= 0  # which NaN is not

    def buckets(self, metric: Metric[Any], /, by: By = (), **wanted: Wanted) -> Vector:
        """Return what a histogram took in the window, by labels: a classic one also by `le`. For a heatmap."""
        return self._buckets("increase", metric, by, wanted)

    @property
    def _exponential(self) -> bool:
        return self.histograms == "exponential" and self.source == "vitals"

    def _buckets(self, function: str, metric: Metric[Any], by: By, wanted: Mapping[str, Wanted]) -> Vector:
        _expect(metric, "histogram")
        if self._exponential:
            return sum_by(self._leaf(metric, "", self._ranged(function), wanted, by), *by)
        series = self._leaf(metric, "_bucket", self._ranged(function), wanted, by)
        return sum_by(Vector(series.text, series.labels | {"le"}), "le", *by)

    def _distribution(self, which: str, metric: Metric[Any], by: By, wanted: Mapping[str, Wanted]) -> Vector:
        _expect(metric, "histogram")
        if self._exponential:
            return call(f"histogram_{which}", self._buckets("rate", metric, by, wanted))
        return sum_by(self._leaf(metric, f"_{which}", self._ranged("rate"), wanted, by), *by)

    def _ranged(self, function: str, *arguments: float) -> Callable[[str], str]:
        more = "".join(f", {number(argument)}" for argument in arguments)
        return lambda series: f"{function}({series}[{self.window}]{more})"

    def _leaf(
        self, metric: Metric[Any], suffix: str, wrap: Callable[[str], str], wanted: Mapping[str, Wanted], by: By
    ) -> Vector:
        """Return the series of a metric with the labels of ours, wherever they are; `wrap` goes around each."""
        asked = {label: match(value) for label, value in wanted.items()}
        check_labels(metric, (*asked, *by), self.targets)
        check_values(metric, asked)
        labels = frozenset((*metric.prometheus_labels, *self.targets))
        everywhere = {label: match(value) for label, value in self.scope.items() if label in labels}
        matches = {**everywhere, **asked}
        found = parts.vllms(metric, matches, (*asked, *by)) if self.source == "native" else parts.ours(metric, matches)
        needed = (*by, *(label for part in found for label in part.adds if len(found) > 1))
        families = [_family(part, suffix, wrap, needed) for part in found]
        return Vector(" or ".join(families), labels, compound=len(families) > 1)


def _family(part: parts.Part, suffix: str, wrap: Callable[[str], str], needed: By) -> str:
    """Return the series of one family, with those labels of ours that are needed."""
    made = Vector(wrap(_selector(part.name + suffix, part.where)))
    for label in dict.fromkeys(needed):
        if label in part.adds:
            made = relabelled(made, label, pattern="", value=part.adds[label])
        elif label in part.renames:
            made = relabelled(made, label, source=part.renames[label])
    return made.text


def _selector(name: str, matches: Mapping[str, Match]) -> str:
    inside = ", ".join(each.text(label) for label, each in matches.items())
    return f"{name}{{{inside}}}" if inside else name


def _offset(offset: str) -> str:
    return f" offset {offset}" if offset else ""


def _expect(metric: Metric[Any], *kinds: str) -> None:
    if metric.kind not in kinds:
        raise ValueError(f"{metric.name} is a {metric.kind}; this takes a {' or a '.join(kinds)}")
