"""A board: rows of panels about one subject, and how that becomes Grafana's JSON."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard, DashboardCursorSync, DashboardLinkType, Panel

from vllm_vitals.catalog import engine
from vllm_vitals.mixin.dashboards import annotations, variables
from vllm_vitals.mixin.dashboards.layout import placed
from vllm_vitals.mixin.promql import Histograms, Queries, Source, Unavailable

Make = Callable[["Context"], Builder[Panel]]
TAG = "vllm-vitals"
UID = re.compile(r"[a-zA-Z0-9_-]{1,40}")
"""What Grafana takes."""


@dataclass(frozen=True)
class Options:
    """How the boards are to be made. `datasource` is the uid of the one to begin with, `""` for Grafana's default."""

    source: Source = "vitals"
    datasource: str = ""
    uid_prefix: str = TAG
    histograms: Histograms = "explicit"

    def uid(self, name: str) -> str:
        """Return the uid of a board, which its address has too."""
        made = "-".join([self.uid_prefix, *(["native"] * (self.source == "native")), name])
        if not UID.fullmatch(made):
            raise ValueError(f"the uid {made!r} must be 1 to 40 of a-z, A-Z, 0-9, - and _: choose another --uid-prefix")
        return made


@dataclass(frozen=True)
class Context:
    """What a panel is made with: `queries` of this source, within the variables; where the other boards are."""

    queries: Queries
    options: Options

    def link(self, name: str, **values: str) -> str:
        """Return the address of another board with the same time and scope; `values` are variables to be set."""
        kept = [variable for variable in ("datasource", *variables.SCOPE.values()) if variable not in values]
        parts = [f"var-{name}={value}" for name, value in values.items()]
        parts += [f"${{{variable}:queryparam}}" for variable in kept]
        return f"/d/{self.options.uid(name)}?{'&'.join(parts)}&${{__url_time_range}}"


@dataclass(frozen=True)
class Row:
    """Panels under a title. One that is `closed` is for the few who need it."""

    title: str
    panels: Sequence[Make]
    closed: bool = False


@dataclass(frozen=True)
class Board:
    """A board: `name` is a part of its uid and file name, `question` what it answers first."""

    name: str
    title: str
    question: str
    rows: Sequence[Row]

    def build(self, options: Options, others: Sequence["Board"]) -> Dashboard | None:
        """Return the board; `None` when its source has nothing for it."""
        context = Context(
            Queries(source=options.source, histograms=options.histograms, scope=variables.scope()), options
        )
        rows = [(row.title, row.closed, _panels(row, context)) for row in self.rows]
        rows = [row for row in rows if row[2]]
        if not rows:
            return None
        made = self._frame(options, context, others).build()
        made.panels = placed(rows)
        return made

    def _frame(self, options: Options, context: Context, others: Sequence["Board"]) -> dashboard.Dashboard:
        native = options.source == "native"
        made = (
            dashboard.Dashboard(f"vLLM / {self.title}{' (native metrics)' if native else ''}")
            .uid(options.uid(self.name))
            .description(self.question)
            .tags(["vllm", f"{TAG}-native" if native else TAG])
            .time("now-1h", "now")
            .refresh("30s")
            .timezone("browser")
            .tooltip(DashboardCursorSync.CROSSHAIR)
            .with_variable(variables.datasource(options.datasource))
        )
        for variable in variables.narrowing(context.queries, engine.RUNNING if native else engine.INFO):
            made = made.with_variable(variable)
        for annotation in annotations.made(context.queries):
            made = made.annotation(annotation)
        for other in others:
            made = made.link(_link(other, options))
        return made


def encode(board: Dashboard) -> dict[str, Any]:
    """Return Grafana's JSON of a board, without what the builders put in that Grafana's schema does not have."""
    found: dict[str, Any] = json.loads(JSONEncoder(sort_keys=True).encode(board))
    for variable in found["templating"]["list"]:
        for key in [key for key in variable if key.startswith("auto")]:
            del variable[key]
    for shown in (*found["links"], *found["annotations"]["list"]):
        shown.pop("placement", None)
    for panel in _all(found["panels"]):
        panel.pop("repeatDirection", None)
        _trim(panel)
    return found


def _trim(panel: dict[str, Any]) -> None:
    panel.get("options", {}).pop("footer", None)
    if panel["type"] == "stat":
        panel["fieldConfig"]["defaults"].pop("custom", None)


def _all(panels: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [*panels, *(inner for panel in panels for inner in panel.get("panels") or ())]


def _panels(row: Row, context: Context) -> list[Panel]:
    """Return the panels that the source has all metrics for."""
    found = []
    for make in row.panels:
        try:
            found.append(make(context).build())
        except Unavailable:
            continue
    return found


def _link(other: "Board", options: Options) -> dashboard.DashboardLink:
    return (
        dashboard.DashboardLink(other.title)
        .type(DashboardLinkType.LINK)
        .icon("dashboard")
        .tooltip(other.question)
        .url(f"/d/{options.uid(other.name)}")
        .include_vars(include_vars=True)
        .keep_time(keep_time=True)
    )
