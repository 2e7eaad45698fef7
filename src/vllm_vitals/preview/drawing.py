"""Matplotlib's part: axes in the look of the page, and the picture as SVG that is a part of it."""

import io
import math
import re
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from itertools import count
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator

from vllm_vitals.preview import units
from vllm_vitals.preview.markup import Markup
from vllm_vitals.preview.window import Window

INK, FAINT = "#010203", "#040506"
"""Stand for colours of the page, which are not the same by day and by night."""
HEIGHT = 220
TICKS = 4
NOTHING: dict[str, Any] = dict.fromkeys(("Date", "Creator", "Format", "Type"))
"""What Matplotlib writes about a file, and a part of a page does not need."""
SHARP = 144
"""Dots per inch of what is drawn as an image."""
STYLE: dict[str, Any] = {
    "svg.fonttype": "none", "text.parse_math": False, "font.family": "DejaVu Sans", "font.size": 10.5,
    "figure.facecolor": "none", "axes.facecolor": "none", "axes.edgecolor": FAINT, "axes.labelcolor": INK,
    "axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False, "axes.grid": True,
    "axes.axisbelow": True, "grid.color": FAINT, "grid.linewidth": 0.8, "xtick.color": FAINT, "ytick.color": FAINT,
    "xtick.labelcolor": INK, "ytick.labelcolor": INK, "xtick.major.size": 3, "ytick.major.size": 0,
    "lines.linewidth": 1.4, "lines.solid_joinstyle": "round",
}  # fmt: skip
BETWEEN = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800, 1209600, 2592000,
)  # fmt: skip
"""Seconds that may be between two ticks of time."""
DAY = 86400
TIME_WIDTH = 80
"""Pixels for a tick of time."""
_pictures = count()

Draw = Callable[[Axes], None]


def picture(draw: Draw, window: Window, width: int) -> Markup:
    """Return what is drawn over the time of a preview, `width` pixels wide; no id in it is in any other picture."""
    style: Any = {**STYLE, "svg.hashsalt": f"{next(_pictures)}"}
    with mpl.rc_context(style):
        size = (width / 72, HEIGHT / 72)
        figure = Figure(figsize=size, dpi=72, layout=ConstrainedLayoutEngine(w_pad=0.02, h_pad=0.02))
        axes = figure.add_subplot()
        draw(axes)
        _clock(axes.xaxis, window, width)
        written = io.StringIO()
        figure.savefig(written, format="svg", dpi=SHARP, metadata=NOTHING)
    return _part_of_the_page(written.getvalue())


def measure(axis: Axis, low: float, high: float, unit: str) -> None:
    """Put ticks on an axis that are round in the unit in which they are written."""
    by = units.scale(high, unit).by
    found = MaxNLocator(TICKS, steps=[1, 2, 2.5, 5, 10]).tick_values(low / by, high / by)
    slack = (high - low) / 1000
    axis.set_major_locator(FixedLocator([tick * by for tick in found if low - slack <= tick * by <= high + slack]))
    label(axis, unit)


def label(axis: Axis, unit: str) -> None:
    """Write the ticks of an axis in a unit."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: units.text(value, unit, trim=True)))


def top(values: Sequence[float]) -> float:
    """Return where an axis that begins at 0 may end."""
    most = max((value for value in values if math.isfinite(value)), default=0)
    return most * 1.05 if most > 0 else 1.0


def colour(palette: str, part: float) -> str:
    """Return the colour of a part of 1 in one of Matplotlib's palettes."""
    return to_hex(mpl.colormaps[palette](part))


def _clock(axis: Axis, window: Window, width: int) -> None:
    """Put the time of day, or the day, on an axis of Unix seconds."""
    begin = window.end - window.span
    step = next((step for step in BETWEEN if window.span / step * TIME_WIDTH <= width), BETWEEN[-1])
    first = -int(-begin // step)
    axis.axes.set_xlim(begin, window.end)
    axis.set_major_locator(FixedLocator([number * step for number in range(first, int(window.end // step) + 1)]))
    form = "%m-%d" if step >= DAY else "%m-%d %H:%M" if window.span > 2 * DAY else "%H:%M" if step >= 60 else "%H:%M:%S"  # noqa: PLR2004
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{datetime.fromtimestamp(value, timezone.utc):{form}}"))


def _part_of_the_page(svg: str) -> Markup:
    """Return a picture without what a file needs, in the colours of the page and as wide as its place."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r'<svg [^>]*?(viewBox="[^"]+")[^>]*>', r"<svg \1 aria-hidden='true'>", body, count=1)
    body = re.sub(r'<g id="[^"]*"', "<g", body)
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    return Markup(body.replace(INK, "currentColor").replace(FAINT, "var(--faint)").replace("xlink:href", "href"))
