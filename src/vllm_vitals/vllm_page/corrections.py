"""Where a number of vLLM's means a little else than ours, and its page holds what sets it right."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from vllm_vitals.catalog import Metric, engine, requests
from vllm_vitals.catalog.metric import Key
from vllm_vitals.vllm_page.counterparts import NAMES, OUTPUT_TOKENS, RECOMPUTED
from vllm_vitals.vllm_page.series import NativeSeries

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
