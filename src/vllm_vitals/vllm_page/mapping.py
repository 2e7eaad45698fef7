"""vLLM's series as ours: the same numbers, under the metrics and labels of the catalogue."""

import logging
import math
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, NamedTuple

from prometheus_client.core import Metric as NativeMetric

from vllm_vitals._util.log import log_once
from vllm_vitals._util.pacing import checkpoint
from vllm_vitals.catalog import Gauge, Metric, engine, requests
from vllm_vitals.catalog.metric import Key
from vllm_vitals.vllm_page.counterparts import (
    COUNTERPARTS,
    NAMES,
    OUTPUT_TOKENS,
    RECOMPUTED,
    RENAMED,
    Native,
    why_missing,
)
from vllm_vitals.vllm_page.parse import Labels, NativeSeries, read

MOST_HELD = 64 * 2**20
"""Bytes of all series together, by rough count; a vLLM has some thousand series."""


class _Life(NamedTuple):
    """A series as it was last seen, and what its lives before had counted."""

    latest: NativeSeries
    value: float = 0.0
    counts: tuple[int, ...] = ()


class Totals:
    """The lives of every counter and histogram that was ever seen."""

    def __init__(self) -> None:
        self._lives: dict[tuple[str, Labels], _Life] = {}
        self._held = 0

    def total(self, now: NativeSeries) -> NativeSeries | None:
        """Return a series with what it counted in all its lives; a gauge as it is.

        `None` for one for which there is no room any more: something makes labels up.
        """
        if now.kind == "gauge":
            return now
        place = (now.name, now.labels)
        known = self._lives.get(place)
        held = self._held + _size(now) - (_size(known.latest) if known else 0)
        if held > max(MOST_HELD, self._held):
            log_once(
                logging.WARNING, "vLLM's page has brought too many series; new ones are left out", key="native-series"
            )
            return None
        self._held = held
        life = self._lives[place] = _life(known, now)
        return now._replace(value=life.value + now.value, counts=_sum(life.counts, now.counts))


def _size(series: NativeSeries) -> int:
    """Return about how many bytes a series takes, with what is made of it."""
    return 1000 + 100 * len(series.bounds) + sum(4 * (len(name) + len(value)) for name, value in series.labels)


def _life(known: _Life | None, now: NativeSeries) -> _Life:
    # Counts of different buckets cannot be added: with others the histogram starts over.
    if known is None or known.latest.bounds != now.bounds:
        return _Life(now, counts=(0,) * len(now.counts))
    if not _began_anew(now, known.latest):
        return known._replace(latest=now)
    before = known.latest
    return _Life(now, known.value + before.value, _sum(known.counts, before.counts))


def _began_anew(now: NativeSeries, before: NativeSeries) -> bool:
    if now.created is not None and before.created is not None and now.created != before.created:
        return True
    if now.kind == "histogram":  # not its sum, which what is less than nothing makes fall
        return any(new < old for new, old in zip(now.counts, before.counts, strict=True))
    return now.value < before.value


def _sum(some: tuple[int, ...], more: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip(some, more, strict=True))


SHORT_OUTPUTS = "at most one token"
"""The name of a counter that is derived: requests that brought one token or none."""

Place = tuple[Metric[Any], Key]
Shown = dict[str, list[NativeSeries]]


class Mapped(NamedTuple):
    """What one of our series holds; a histogram's value is its sum, its counts are not cumulated."""

    value: float
    bounds: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()


Found = dict[Place, Mapped]


def derived(series: NativeSeries) -> Iterator[NativeSeries]:
    """Yield what else is counted by a series.

    Done before the numbers of several lives of a vLLM are added up: its buckets may differ from one to the next.
    """
    if series.name == OUTPUT_TOKENS and 1.0 in series.bounds:
        short = float(sum(series.counts[: series.bounds.index(1.0) + 1]))
        yield NativeSeries(SHORT_OUTPUTS, "counter", series.labels, short, created=series.created)
    if series.kind == "histogram" and f"{series.name}_sum" in NAMES:
        yield NativeSeries(f"{series.name}_sum", "counter", series.labels, series.value, created=series.created)


def _without_recomputed(found: Found, shown: Shown) -> None:
    """Count a token that was cached but computed again once: 0.16 to 0.19 count it under both sources."""
    for scope, twice in _by_engine(shown, RECOMPUTED).items():
        place = (requests.PROMPT_TOKENS, (*scope, "local_cache_hit"))
        if place in found:
            found[place] = Mapped(max(found[place].value - twice, 0.0))


def _without_short_outputs(found: Found, shown: Shown) -> None:
    """Leave out requests that have no time per output token, where vLLM says 0 s."""
    short = _by_engine(shown, SHORT_OUTPUTS)
    metric = requests.MEAN_TIME_PER_OUTPUT_TOKEN
    for place in [place for place in found if place[0] is metric]:
        known = found.pop(place)
        if place[1] in short:  # else nothing true can be said
            first = max(known.counts[0] - int(short[place[1]]), 0)
            found[place] = known._replace(counts=(first, *known.counts[1:]))


def _with_paused(found: Found, _: Shown) -> None:
    """Add the state that vLLM shows by none being 1: sleep level 0."""
    states: dict[Key, float] = {}
    for (metric, key), known in found.items():
        if metric is engine.SLEEP:
            states[key[:-1]] = states.get(key[:-1], 0.0) + known.value
    for scope, told in states.items():
        found[engine.SLEEP, (*scope, "paused")] = Mapped(float(not told))


def _by_engine(shown: Shown, name: str) -> dict[Key, float]:
    found: dict[Key, float] = {}
    for series in shown.get(name, ()):
        told = dict(series.labels)
        scope = (told.get("model_name", ""), told.get("engine", ""))
        found[scope] = found.get(scope, 0.0) + series.value
    return found


CORRECTIONS: tuple[Callable[[Found, Shown], None], ...] = (_without_recomputed, _without_short_outputs, _with_paused)


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
