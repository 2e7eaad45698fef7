"""The kinds of panels, each in the one look that all boards share."""

from collections.abc import Sequence
from typing import Any, TypeVar

from grafana_foundation_sdk.builders import common, dashboard, heatmap, stat, statetimeline, timeseries
from grafana_foundation_sdk.models import common as options
from grafana_foundation_sdk.models.dashboard import (
    DynamicConfigValue,
    FieldColorModeId,
    Threshold,
    ThresholdsMode,
    ValueMap,
    ValueMappingResult,
)
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode

from vllm_vitals.mixin.dashboards.query import DATASOURCE, Format, Query, ref_id
from vllm_vitals.mixin.dashboards.theme import HEAT, LIMIT, NO_TRAFFIC, SKY

Steps = Sequence[tuple[float | None, str]]
"""Colours by the value from which on they hold, ascending; the first is for everything below."""
Drawn = TypeVar("Drawn", timeseries.Panel, statetimeline.Panel)
SMALL, TALL = 4, 8
"""Heights in rows of Grafana's grid."""
THIRD, HALF, WHOLE = 8, 12, 24
"""Widths of 24: at 1280 px a third is what a graph needs. A phone shows one panel in a row, whatever its width."""


def figure(
    title: str, why: str, unit: str, *queries: Query, steps: Steps = (), decimals: int | None = None, width: int = 4,
    none: str = NO_TRAFFIC,
) -> stat.Panel:  # fmt: skip
    """Return a panel with one large number for each series, as it is now.

    It has no small graph: a series that has ended, because nothing is asked or nobody tells any more, would go on showing
    its last number.
    """
    made = (
        stat.Panel()
        .title(title)
        .description(why)
        .datasource(DATASOURCE)
        .unit(unit)
        .no_value(none)
        .span(width)
        .height(SMALL)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(values=False).fields(""))
        .graph_mode(options.BigValueGraphMode.NONE)
        .color_mode(options.BigValueColorMode.VALUE)
        .color_scheme(_color(FieldColorModeId.THRESHOLDS) if steps else _color(FieldColorModeId.FIXED, SKY))
        .thresholds(_thresholds(steps or ((None, SKY),)))
    )
    if decimals is not None:
        made = made.decimals(decimals)
    for number, query in enumerate(queries):
        made = made.with_target(query.target(number, instant=True))
    return made


def lines(
    title: str, why: str, unit: str, *queries: Query, stacked: bool = False, most: float | None = None,
    width: int = HALF, log: bool = False, none: str = NO_TRAFFIC,
) -> timeseries.Panel:  # fmt: skip
    """Return a graph over time; `most` is the top of its axis where there is a natural one."""
    made = (
        timeseries.Panel()
        .title(title)
        .description(why)
        .datasource(DATASOURCE)
        .unit(unit)
        .no_value(none)
        .min(0)
        .span(width)
        .height(TALL)
        .line_width(1)
        .fill_opacity(25 if stacked else 8)
        .show_points(options.VisibilityMode.NEVER)
        .color_scheme(_color(FieldColorModeId.SHADES, SKY))
        .thresholds(_thresholds(((None, SKY),)))
        .legend(_legend(len(queries)))
        .tooltip(common.VizTooltipOptions().mode(options.TooltipDisplayMode.MULTI).sort(options.SortOrder.DESCENDING))
    )
    if stacked:
        made = made.stacking(common.StackingConfig().mode(options.StackingMode.NORMAL).group("A"))
    if most is not None:
        made = made.max(most)
    if log:
        made = made.scale_distribution(
            common.ScaleDistributionConfig().type(options.ScaleDistribution.LOG).log(10)
        )  # fmt: skip
    for number, query in enumerate(queries):
        made = _coloured(made.with_target(query.target(number, instant=False)), query, ref_id(number))
    return made


def heat(title: str, why: str, unit: str, query: Query, *, width: int = HALF) -> heatmap.Panel:
    """Return how the values of a histogram are spread, over time."""
    return (
        heatmap.Panel()
        .title(title)
        .description(why)
        .datasource(DATASOURCE)
        .unit(unit)
        .no_value(NO_TRAFFIC)
        .span(width)
        .height(TALL)
        .calculate(calculate=False)
        .color(
            heatmap.HeatmapColorOptions()
            .mode(HeatmapColorMode.SCHEME)
            .scheme(HEAT)
            .steps(64)
            .exponent(0.5)
            .fill(SKY)
            .reverse(reverse=False)
        )
        .cell_gap(1)
        .show_value(options.VisibilityMode.NEVER)
        .y_axis(heatmap.YAxisConfig().unit(unit))
        .tooltip(heatmap.HeatmapTooltip().mode(options.TooltipDisplayMode.SINGLE).y_histogram(y_histogram=True))
        .with_target(query.target(0, instant=False, form=Format.HEATMAP))
    )


def states(
    title: str, why: str, *queries: Query, words: dict[str, tuple[str, str]], width: int = HALF, none: str = NO_TRAFFIC
) -> statetimeline.Panel:
    """Return a band over time for each series; `words` holds the text and colour of each value."""
    made = (
        statetimeline.Panel()
        .title(title)
        .description(why)
        .datasource(DATASOURCE)
        .unit("none")
        .no_value(none)
        .span(width)
        .height(TALL)
        .show_value(options.VisibilityMode.NEVER)
        .merge_values(merge_values=True)
        .row_height(0.85)
        .color_scheme(_color(FieldColorModeId.THRESHOLDS))
        .thresholds(_thresholds(((None, LIMIT),)))
        .mappings([ValueMap(options=_words(words))])
        .legend(_legend(1))
        .tooltip(common.VizTooltipOptions().mode(options.TooltipDisplayMode.MULTI).sort(options.SortOrder.NONE))
    )
    for number, query in enumerate(queries):
        made = made.with_target(query.target(number, instant=False))
    return made


def fixed(colour: str) -> DynamicConfigValue:
    """Return the property that gives a series its colour."""
    return DynamicConfigValue("color", {"mode": "fixed", "fixedColor": colour})


def _coloured(panel: timeseries.Panel, query: Query, reference: str) -> timeseries.Panel:
    for name, colour in query.colours.items():
        panel = panel.override_by_name(name, [fixed(colour)])
    if query.limit:
        panel = panel.override_by_query(reference, _dashed())
    if query.right:
        axis = [DynamicConfigValue("unit", query.right), DynamicConfigValue("custom.axisPlacement", "right")]
        panel = panel.override_by_query(reference, axis)
    return panel


def _dashed() -> list[DynamicConfigValue]:
    apart: Any = {"mode": "none", "group": "A"}
    return [
        fixed(LIMIT),
        DynamicConfigValue("custom.lineStyle", {"fill": "dash", "dash": [8, 6]}),
        DynamicConfigValue("custom.fillOpacity", 0),
        DynamicConfigValue("custom.stacking", apart),
    ]


def _legend(queries: int) -> common.VizLegendOptions:
    """Return a legend below the graph, which on a phone is the only place that leaves the graph its width."""
    shown = common.VizLegendOptions().show_legend(show_legend=queries > 0)
    return shown.display_mode(options.LegendDisplayMode.LIST).placement(options.LegendPlacement.BOTTOM).calcs([])


def _color(mode: FieldColorModeId, colour: str = "") -> dashboard.FieldColor:
    made = dashboard.FieldColor().mode(mode)
    return made.fixed_color(colour) if colour else made


def _thresholds(steps: Steps) -> dashboard.ThresholdsConfig:
    made = [Threshold(color=colour, value=value) for value, colour in steps]
    return dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(made)


def _words(words: dict[str, tuple[str, str]]) -> dict[str, ValueMappingResult]:
    return {
        value: ValueMappingResult(text=text, color=colour, index=index)
        for index, (value, (text, colour)) in enumerate(words.items())
    }
