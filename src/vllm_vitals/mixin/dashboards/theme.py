"""Colours that people with any colour vision can tell apart, on light and on dark: those of Okabe and Ito (2008)."""

from collections.abc import Iterable
from itertools import cycle

BLUE, ORANGE, GREEN, PINK = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
SKY, VERMILION, YELLOW, GREY = "#56B4E9", "#D55E00", "#F0E442", "#999999"
PALETTE = (SKY, ORANGE, GREEN, PINK, VERMILION, YELLOW, BLUE, GREY)
GOOD, BAD, LIMIT = GREEN, VERMILION, GREY
HEAT = "Cividis"
"""A scheme of heatmaps that is made for every colour vision."""

NO_TRAFFIC = "no traffic"
"""What a panel shows where there is nothing to divide by."""


def colours(names: Iterable[str]) -> dict[str, str]:
    """Return a colour for each name, the same for the same names in the same order."""
    return dict(zip(names, cycle(PALETTE), strict=False))
