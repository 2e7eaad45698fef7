"""How a panel shows each of its series: the options of its fields, and what overrides them."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm_vitals.mixin.dashboards.theme import BLUE, SKY
from vllm_vitals.preview import units
from vllm_vitals.preview.answers import Answers, Panel
from vllm_vitals.preview.prometheus import Series

LABEL = re.compile(r"\{\{\s*(\w+)\s*\}\}")
SHADES = 6


@dataclass(frozen=True)
class Look:
    """What a value and the line through it look like; `options` are Grafana's, by their path."""

    options: Mapping[str, Any]
    index: int = 0

    @property
    def unit(self) -> str:
        """Return Grafana's name of the unit."""
        return str(self.options.get("unit", ""))

    @property
    def on_the_right(self) -> bool:
        """Return whether it has an axis of its own."""
        return self.options.get("custom.axisPlacement") == "right"

    @property
    def dashed(self) -> bool:
        """Return whether the line is dashed."""
        return bool(self.options.get("custom.lineStyle", {}).get("fill") == "dash")

    @property
    def stacked(self) -> bool:
        """Return whether it stands on those before it."""
        return bool(self.options.get("custom.stacking", {}).get("mode") == "normal")

    @property
    def fill(self) -> float:
        """Return how opaque the area below the line is, of 1."""
        return float(self.options.get("custom.fillOpacity", 0)) / 100

    def text(self, value: float) -> str:
        """Return a value with its unit, or the word that stands for it."""
        word = self._mapped(value).get("text")
        return str(word) if word else units.text(value, self.unit, self.options.get("decimals"))

    def colour(self, value: float = math.nan) -> str:
        """Return the colour of a value, or of a whole series."""
        mapped = self._mapped(value).get("color")
        if mapped:
            return str(mapped)
        colour = self.options.get("color", {})
        mode = colour.get("mode", "fixed")
        if mode == "thresholds":
            return self._threshold(value)
        if mode.startswith("continuous"):
            return BLUE
        fixed = str(colour.get("fixedColor", SKY))
        return shade(fixed, self.index) if mode == "shades" else fixed

    def words(self) -> dict[str, str]:
        """Return the colour of each word that values are shown as."""
        return {str(each["text"]): str(each["color"]) for each in self._words().values()}

    def _words(self) -> dict[str, dict[str, Any]]:
        every = [mapping["options"] for mapping in self.options.get("mappings", ()) if mapping["type"] == "value"]
        return {key: word for options in every for key, word in options.items()}

    def _mapped(self, value: float) -> dict[str, Any]:
        words = self._words()
        return words.get(f"{value:g}", {}) if words else {}

    def _threshold(self, value: float) -> str:
        steps = self.options.get("thresholds", {}).get("steps") or [{"color": SKY, "value": None}]
        passed = [step["color"] for step in steps if step["value"] is None or value >= step["value"]]
        return str(passed[-1] if passed else steps[0]["color"])


@dataclass(frozen=True)
class Shown:
    """A series of a panel, its name and its look."""

    name: str
    series: Series
    look: Look

    @property
    def last(self) -> float:
        """Return the latest value that is one, else NaN."""
        return next((value for _, value in reversed(self.series.points) if not math.isnan(value)), math.nan)


def shown(panel: Panel, answers: Answers) -> list[Shown]:
    """Return every series of a panel that has any value."""
    found: list[Shown] = []
    for target in panel["targets"]:
        for series in answers[panel["id"], target["refId"]].series:
            name = legend(target.get("legendFormat", ""), series.labels)
            look = Look(options(panel, name, target["refId"]), len(found))
            found.append(Shown(name, series, look))
    return [each for each in found if not math.isnan(each.last)]


def legend(template: str, labels: Mapping[str, str]) -> str:
    """Return the name of a series; a label that it lacks is empty, as in Grafana."""
    return LABEL.sub(lambda found: labels.get(found[1], ""), template) or "Value"


def options(panel: Panel, name: str, reference: str = "") -> dict[str, Any]:
    """Return the options of a field by their path, of what a panel says for all and for one of this name or query."""
    config = panel["fieldConfig"]
    defaults = dict(config["defaults"])
    found = {f"custom.{key}": value for key, value in (defaults.pop("custom", None) or {}).items()} | defaults
    for override in config.get("overrides", ()):
        matcher = override["matcher"]
        if (matcher["id"], matcher["options"]) in {("byName", name), ("byFrameRefID", reference)}:
            found |= {each["id"]: each["value"] for each in override["properties"]}
    return found


def shade(colour: str, index: int) -> str:
    """Return the `index`-th shade of a colour: itself, then by turns a lighter and a darker one."""
    place = index % (2 * SHADES - 1)
    goal = 255 if place % 2 else 0
    part = (place + 1) // 2 / SHADES * 0.7
    parts = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
    return "#" + "".join(f"{round(value + (goal - value) * part):02x}" for value in parts)
