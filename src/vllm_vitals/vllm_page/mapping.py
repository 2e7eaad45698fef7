"""vLLM's series as ours: the same numbers, under the metrics and labels of the catalogue."""

import math
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from prometheus_client.core import Metric as NativeMetric

from vllm_vitals._util.pacing import checkpoint
from vllm_vitals.catalog import Gauge, Metric
from vllm_vitals.catalog.metric import Key
from vllm_vitals.vllm_page.corrections import CORRECTIONS, Found, Mapped, Shown, derived
from vllm_vitals.vllm_page.counterpart import Native
from vllm_vitals.vllm_page.counterparts import COUNTERPARTS, NAMES, RENAMED, why_missing
from vllm_vitals.vllm_page.series import Labels, NativeSeries, read

STARTED = "process_start_time_seconds"


def relevant(families: Iterable[NativeMetric]) -> Iterator[NativeSeries]:
    """Yield the series of a page that ours can be had from, with when they began, and what is derived from them."""
    known = list(families)
    started = next((family.samples[0].value for family in known if family.name == STARTED and family.samples), None)
    found: dict[tuple[str, Labels], NativeSeries] = {}  # of one that is shown twice the last, or it would add up
    for family in known:
        for each in read(family):
            if each.name in NAMES and (each.kind == "gauge" or math.isfinite(each.value)):
                found[each.name, each.labels] = each if each.created is not None else each._replace(created=started)
        checkpoint()
    for each in found.values():
        yield each
        yield from derived(each)


def mapped(series: Iterable[NativeSeries]) -> Found:
    """Return what our series hold, each by metric and label values in the order of `labelnames`."""
    shown: Shown = {}
    for each in series:
        shown.setdefault(each.name, []).append(each)
    found: Found = {}
    for native in COUNTERPARTS:
        for each in _meant(native, shown):
            key = _key(native, each)
            if key is not None:
                place = (native.ours, key)
                found[place] = _together(native.ours, found.get(place), Mapped(each.value, each.bounds, each.counts))
    for correct in CORRECTIONS:
        correct(found, shown)
    return found


def missing(metrics: Iterable[Metric[Any]], names: Collection[str] | None = None) -> list[tuple[Metric[Any], str]]:
    """Return the metrics that vLLM's page cannot give, and why; with the names of its series, what one page cannot."""
    found = []
    for metric in metrics:
        natives = [native.name for native in COUNTERPARTS if native.ours is metric]
        if names is not None and natives and not any(name in names for name in natives):
            found.append((metric, f"this page has no {natives[0]}"))
        elif why := why_missing(metric):
            found.append((metric, why))
    return found


def _meant(native: Native, shown: Shown) -> Iterator[NativeSeries]:
    """Yield the series that a native means; none where the page has something better."""
    if native.superseded_by not in shown:
        for each in shown.get(native.name, ()):
            labels = set(each.labels)
            if each.kind == native.ours.kind and native.where.items() <= labels:
                yield each._replace(value=0.0) if native.zero_where.items() & labels else each


def _key(native: Native, series: NativeSeries) -> Key | None:
    """Return the values of our labels, `None` where the series does not tell one; who serves may go untold."""
    told = dict.fromkeys(native.optional_labels, "") | {RENAMED.get(name, name): value for name, value in series.labels}
    told |= native.labels
    if any(label.name not in told for label in native.ours.labels):
        return None
    return tuple(told.get(name, "") for name in native.ours.labelnames)


def _together(metric: Metric[Any], known: Mapped | None, more: Mapped) -> Mapped:
    """Return what series make together that only a name, or a label that ours lack such as `pid`, tells apart."""
    if known is None or known.bounds != more.bounds:
        return more
    if isinstance(metric, Gauge):  # of one engine, as several processes saw it: which is the latest is not told
        return max(known, more, key=lambda each: each.value)
    counts = tuple(a + b for a, b in zip(known.counts, more.counts, strict=True))
    return Mapped(known.value + more.value, known.bounds, counts)
