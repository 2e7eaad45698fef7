"""Lines over time, and bands: a heatmap's and a state timeline's."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm

from vllm_vitals.preview import drawing, units
from vllm_vitals.preview.fields import Shown
from vllm_vitals.preview.prometheus import Series

Values = np.ndarray[Any, np.dtype[np.float64]]
EMPTY_CELL = 1e-9
"""What Grafana takes a cell of a heatmap for empty below."""
SCALE = 0.5
"""The power of a count that its colour follows, as in the boards."""
ROWS_WITH_A_NAME = 7
NAME = 26
"""Letters of a name that fit beside a band."""


def grid(bounds: tuple[int, int], step: int) -> Values:
    """Return the moments that a query over time is answered for."""
    return np.arange(bounds[0], bounds[1] + step, step, dtype=float)


def aligned(series: Series, times: Values) -> Values:
    """Return the value at each of these moments, NaN where there is none or none that can be drawn."""
    found = np.full(len(times), math.nan)
    step = times[1] - times[0] if len(times) > 1 else 1
    for time, value in series.points:
        place = round((time - times[0]) / step)
        if 0 <= place < len(times) and math.isfinite(value):
            found[place] = value
    return found


def lines(shown: Sequence[Shown], times: Values) -> drawing.Draw:
    """Return what draws a graph; series that stand on each other are summed from the first on."""
    left = [each for each in shown if not each.look.on_the_right]
    right = [each for each in shown if each.look.on_the_right]

    def draw(axes: Axes) -> None:
        if left:
            _lines(axes, left, times)
        if right:
            beside = axes.twinx()
            _lines(beside, right, times)
            beside.grid(visible=False)

    return draw


def _lines(axes: Axes, shown: Sequence[Shown], times: Values) -> None:
    below = np.zeros(len(times))
    seen: list[float] = []
    for each in shown:
        values = aligned(each.series, times)
        base = below if each.look.stacked else np.zeros(len(times))
        if each.look.stacked:
            below = below + np.nan_to_num(values)
            values = base + values
        _line(axes, each, times, base, values)
        seen += values.tolist()
    options, unit = shown[0].look.options, shown[0].look.unit
    if options.get("custom.scaleDistribution", {}).get("type") == "log":
        axes.set_yscale("log")
        drawing.label(axes.yaxis, unit)
        return
    high = float(options.get("max", drawing.top(seen)))
    low = min([float(options.get("min", 0)), *(value for value in seen if value < 0)])
    axes.set_ylim(low, high)
    drawing.measure(axes.yaxis, low, high, unit)


def _line(axes: Axes, each: Shown, times: Values, base: Values, values: Values) -> None:
    colour = each.look.colour()
    style: dict[str, Any] = {"linestyle": (0, (5, 4))} if each.look.dashed else {}
    axes.plot(times, values, color=colour, **style)
    lonely = _lonely(values)
    axes.plot(times[lonely], values[lonely], ".", color=colour, markersize=3)
    if each.look.fill:
        axes.fill_between(times, base, values, color=colour, alpha=each.look.fill, linewidth=0)


def _lonely(values: Values) -> "np.ndarray[Any, np.dtype[np.bool_]]":
    """Return which values have none beside them, so that no line goes through them."""
    there = np.pad(~np.isnan(values), 1)
    return np.asarray(there[1:-1] & ~there[:-2] & ~there[2:])


@dataclass(frozen=True)
class Spread:
    """How many values were in each bucket of a histogram (`cells`, masked where none was), with its upper bound."""

    bounds: list[float]
    cells: "np.ma.MaskedArray[Any, np.dtype[np.float64]]"

    @property
    def most(self) -> float:
        """Return how many values the fullest cell holds."""
        return float(self.cells.max()) if self.cells.count() else 0.0


def spread(shown: Sequence[Shown], times: Values) -> Spread:
    """Return the buckets of a histogram from the first to the last that held anything; Prometheus adds them up."""
    buckets = sorted(shown, key=_bound)
    totals = np.array([np.nan_to_num(aligned(each.series, times)) for each in buckets])
    counts = np.clip(np.diff(totals, axis=0, prepend=0), 0, None)
    used = np.flatnonzero((counts > EMPTY_CELL).any(axis=1)).tolist() or [0]
    kept = slice(used[0], used[-1] + 1)
    return Spread([_bound(each) for each in buckets[kept]], np.ma.masked_less_equal(counts[kept], EMPTY_CELL))


def heat(found: Spread, times: Values, unit: str, palette: str) -> drawing.Draw:
    """Return what draws how many values were in each bucket, over time."""
    rows = range(0, len(found.bounds), -(-len(found.bounds) // ROWS_WITH_A_NAME))

    def draw(axes: Axes) -> None:
        step = times[1] - times[0] if len(times) > 1 else 1
        sides, edges = [*(times - step), times[-1]], range(len(found.bounds) + 1)
        axes.grid(visible=False)
        axes.pcolormesh(sides, edges, found.cells, cmap=palette, norm=PowerNorm(SCALE, 0), rasterized=True)
        axes.set_yticks([row + 1 for row in rows], [units.text(found.bounds[row], unit, trim=True) for row in rows])

    return draw


def _bound(bucket: Shown) -> float:
    """Return the upper bound of a bucket of a histogram."""
    return float(bucket.series.labels["le"])


def states(shown: Sequence[Shown], times: Values) -> drawing.Draw:
    """Return what draws a band for each series, of the colours of its values."""

    def draw(axes: Axes) -> None:
        step = times[1] - times[0] if len(times) > 1 else 1
        begins = [*times, times[-1] + step]
        axes.grid(visible=False)
        for row, each in enumerate(shown):
            for value, first, after in _runs(aligned(each.series, times)):
                begin, end = begins[first], begins[after]
                axes.barh(row, end - begin, 0.8, begin, color=each.look.colour(value))
        axes.set_yticks(range(len(shown)), [_short(each.name) for each in shown])
        axes.set_ylim(len(shown) - 0.5, -0.5)

    return draw


def _runs(values: Values) -> Iterator[tuple[float, int, int]]:
    """Yield each value that lasts, from which place on, and to before which."""
    first = 0
    for value, some in groupby(np.nan_to_num(values, nan=math.inf).tolist()):
        after = first + len(list(some))
        if math.isfinite(value):
            yield value, first, after
        first = after


def _short(name: str) -> str:
    return name if len(name) <= NAME else f"{name[: NAME - 1]}…"
