"""How far quantiles estimated from our histograms are from those of the values that filled them."""

import math
from array import array
from collections import Counter
from typing import NamedTuple

from vllm_vitals.catalog.buckets import plan
from vllm_vitals.store.series import HistogramCell

from .latencies import made, recorded
from .options import Options
from .table import Figure, percentile

FAMILIES = {"ttft": "time_to_first_token", "itl": "inter_token_latency"}
PERCENTS = (50.0, 90.0, 99.0)


class Bucket(NamedTuple):
    """A bucket, and how many values it holds: those in (low, high]."""

    low: float
    high: float
    held: int


class Filled(NamedTuple):
    """The buckets of one histogram, of both kinds."""

    explicit: list[Bucket]
    exponential: list[Bucket]


def fill(values: list[float], bounds: tuple[float, ...]) -> Filled:
    """Return what the collector's histogram makes of values."""
    cell = HistogramCell("bench", math.inf, Counter(), bounds, exponential=True)
    cell.extend(array("d", values))
    cell.settle()
    sparse = cell.exponential
    assert sparse is not None
    edges = [0.0, *bounds, math.inf]
    explicit = [Bucket(*each) for each in zip(edges, edges[1:], cell.counts, strict=False)]
    powers = [2 ** ((sparse.offset + index) / 2**sparse.scale) for index in range(len(sparse.counts) + 1)]
    exponential = [Bucket(*each) for each in zip(powers, powers[1:], map(int, sparse.counts), strict=False)]
    return Filled(explicit, exponential)


def linear(buckets: list[Bucket], percent: float) -> float:
    """Return a percentile as Prometheus estimates it from explicit buckets."""
    bucket, share = _find(buckets, percent)
    # Of a value beyond the last bound nothing else is known.
    return bucket.low if math.isinf(bucket.high) else bucket.low + (bucket.high - bucket.low) * share


def geometric(buckets: list[Bucket], percent: float) -> float:
    """Return a percentile as Prometheus estimates it from a native histogram."""
    bucket, share = _find(buckets, percent)
    return bucket.low * math.pow(bucket.high / bucket.low, share)


def _find(buckets: list[Bucket], percent: float) -> tuple[Bucket, float]:
    """Return the bucket that holds a percentile, and what share of its values are below."""
    rank = percent / 100 * sum(bucket.held for bucket in buckets)
    for bucket in buckets:
        if bucket.held and bucket.held >= rank:
            return bucket, rank / bucket.held
        rank -= bucket.held
    raise ValueError("no values")


def run(options: Options) -> Figure:  # noqa: ARG001 - exact, and quick in any case
    """Compare both kinds of buckets on recorded and on made latencies."""
    figure = Figure(
        "quantiles",
        "quantiles estimated from buckets, against those of the values themselves, ms",
        [
            *("latencies", "of", "values", "quantile", "exact", "explicit", "error %", "exponential", "error %"),
            *("explicit buckets", "exponential buckets"),
        ],
        "Estimated as Prometheus does: linear within an explicit bucket, geometric within an exponential one. Buckets: those\n"
        "that hold values, of all that there are. Recorded: a tiny model on a CPU under bursts. Made: mixtures, heavy tails.",
    )
    for source, latencies in (("recorded", recorded()), ("made", made())):
        for kind, values in latencies.items():
            _compare(figure, (source, kind), values, plan(None)[FAMILIES[kind]])
    return figure


def _compare(figure: Figure, named: tuple[str, str], values: list[float], bounds: tuple[float, ...]) -> None:
    """Add a row for each quantile of one sample."""
    filled = fill(values, bounds)
    used = [f"{sum(bucket.held > 0 for bucket in buckets)} of {len(buckets)}" for buckets in filled]
    for percent in PERCENTS:
        exact = percentile(values, percent)
        estimates = linear(filled.explicit, percent), geometric(filled.exponential, percent)
        errors = [(estimate / exact - 1) * 100 for estimate in estimates]
        shown = [cell for pair in zip((each * 1e3 for each in estimates), errors, strict=True) for cell in pair]
        figure.add(*named, len(values), f"p{percent:g}", exact * 1e3, *shown, *used)
