"""What is in a panel, by its kind."""

from collections.abc import Callable, Sequence

from vllm_vitals.preview import drawing, graphs, tables, units
from vllm_vitals.preview.answers import Panel, pixels
from vllm_vitals.preview.board import Preview
from vllm_vitals.preview.fields import Shown, shown
from vllm_vitals.preview.markup import Markup, joined, tag

PADDING = 22
"""Pixels of a panel's width that are not its graph's."""
NARROW = 394
"""The width of a graph on a phone, and that of a third of the page."""


def content(panel: Panel, preview: Preview) -> Markup:
    """Return what a panel shows: its series, or what is wrong with them, or that there are none."""
    answers = preview.of(panel)
    errors = [tag("p", error) for error in dict.fromkeys(answer.error for answer in answers) if error]
    if errors:
        return tag("div", *errors, class_="error", role="alert")
    draw = KINDS.get(panel["type"])
    if draw is None:
        return _instead(f"a panel of the kind {panel['type']!r} is not drawn here")
    left_out = next((answer.not_drawn for answer in answers if answer.not_drawn), "")
    if left_out:
        return _instead(left_out)
    series = shown(panel, preview.answers)
    return draw(panel, preview, series) if series else _instead(panel["fieldConfig"]["defaults"]["noValue"])


def _instead(words: str) -> Markup:
    return tag("p", words, class_="none")


def _numbers(_panel: Panel, _: Preview, series: Sequence[Shown]) -> Markup:
    return tables.numbers(series)


def _table(panel: Panel, preview: Preview, _: Sequence[Shown]) -> Markup:
    return tables.table(panel, preview.answers)


def _lines(panel: Panel, preview: Preview, series: Sequence[Shown]) -> Markup:
    return joined(_graph(panel, preview, graphs.lines(series, _times(panel, preview))), tag("ul", *map(_named, series)))


def _heat(panel: Panel, preview: Preview, series: Sequence[Shown]) -> Markup:
    unit, palette = panel["fieldConfig"]["defaults"]["unit"], panel["options"]["color"]["scheme"].lower()
    times = _times(panel, preview)
    found = graphs.spread(series, times)
    most = tag("data", units.text(found.most, "short"), value=repr(found.most))
    scale = [tag("li", "few", style=f"--colour:{drawing.colour(palette, 0)}")]
    scale.append(tag("li", "up to ", most, " in a cell", style=f"--colour:{drawing.colour(palette, 1)}"))
    return joined(_graph(panel, preview, graphs.heat(found, times, unit, palette)), tag("ul", *scale))


def _states(panel: Panel, preview: Preview, series: Sequence[Shown]) -> Markup:
    words = [tag("li", word, style=f"--colour:{colour}") for word, colour in series[0].look.words().items()]
    return joined(_graph(panel, preview, graphs.states(series, _times(panel, preview))), tag("ul", *words))


KINDS: dict[str, Callable[[Panel, Preview, Sequence[Shown]], Markup]] = {
    "stat": _numbers, "table": _table, "timeseries": _lines, "heatmap": _heat, "state-timeline": _states,
}  # fmt: skip
"""What draws each kind of panel that the boards have."""


def _graph(panel: Panel, preview: Preview, draw: drawing.Draw) -> Markup:
    """Return a graph as wide as its panel, and where that is too wide for a phone, another."""
    wide = pixels(panel) - PADDING
    drawn = [tag("div", drawing.picture(draw, preview.window, wide), class_="wide" if wide > NARROW else None)]
    if wide > NARROW:
        drawn.append(tag("div", drawing.picture(draw, preview.window, NARROW), class_="narrow"))
    return joined(*drawn)


def _times(panel: Panel, preview: Preview) -> graphs.Values:
    step = preview.step(panel)
    return graphs.grid(preview.window.bounds(step), step)


def _named(each: Shown) -> Markup:
    """Return an entry of a legend, which says the latest value to who points at it."""
    return tag(
        "li",
        tag("data", each.name, value=repr(each.last)),
        class_="dashed" if each.look.dashed else None,
        style=f"--colour:{each.look.colour()}",
        title=f"latest: {each.look.text(each.last)}",
    )
