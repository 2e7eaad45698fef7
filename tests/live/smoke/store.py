"""What a real Prometheus has stored of a page, beside that page."""

import json
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote

from tests.live.prometheus import Prometheus
from tests.live.pushes import MOVING
from tests.live.server import fetch
from tests.parity import Labels, Samples
from vllm_vitals.catalog import CATALOG, Metric, cache, engine, self_metrics

SUFFIXES = {"counter": ("",), "gauge": ("",), "histogram": ("_bucket", "_count", "_sum")}
OF_TIME = {engine.SATURATION, engine.IMBALANCE, cache.TIME_TO_FULL, self_metrics.STEP_AGE}
"""Gauges that move while nothing happens."""


def stored(prometheus: Prometheus) -> Samples:
    """Return the latest value of all series that Prometheus scraped, none before it answers."""
    query = quote('{job="vllm", __name__=~"(vllm|vitals|gen_ai)_.+"}')
    try:
        answer = json.loads(fetch(f"http://127.0.0.1:{prometheus.port}/api/v1/query?query={query}", timeout=60))
    except OSError:
        return {}
    samples: Samples = {}
    for series in answer["data"]["result"]:
        labels = dict(series["metric"])
        name = labels.pop("__name__")
        del labels["job"], labels["instance"]
        samples.setdefault(name, {})[_comparable(labels.items())] = float(series["value"][1])
    return samples


def exemplars(prometheus: Prometheus, name: str) -> list[str]:
    """Return the request ids of the exemplars that Prometheus has of a metric."""
    url = f"http://127.0.0.1:{prometheus.port}/api/v1/query_exemplars?query={name}&start=0&end=9999999999"
    found = json.loads(fetch(url, timeout=60))["data"]
    return [each["labels"]["request_id"] for series in found for each in series["exemplars"]]


def store_differences(store: Samples, page: Samples) -> list[str]:
    """Return a line for each sample that is on the page and not so in the store, or only there."""
    found = []
    for name in sorted({name for metric in CATALOG if _stands_still(metric) for name in _names(metric)}):
        got, shown = store.get(name, {}), {_comparable(labels): each for labels, each in page.get(name, {}).items()}
        found += [
            f"{name}{dict(labels)}: Prometheus has {got.get(labels)}, the page shows {shown.get(labels)}"
            for labels in got.keys() | shown.keys()
            if got.get(labels) != shown.get(labels)
        ]
    return found


def compared(page: Samples) -> int:
    """Return how many samples of a page are looked up in the store."""
    return sum(len(page.get(name, {})) for metric in CATALOG if _stands_still(metric) for name in _names(metric))


def _names(metric: Metric[Any]) -> Iterator[str]:
    return (metric.prometheus + suffix for suffix in SUFFIXES[metric.kind])


def _stands_still(metric: Metric[Any]) -> bool:
    return metric not in MOVING and metric not in OF_TIME


def _comparable(labels: Iterable[tuple[str, str]]) -> Labels:
    """Return labels with one spelling of each bound: Prometheus may write 1 for 1.0."""
    return frozenset((name, str(float(text)) if name == "le" else text) for name, text in labels)
