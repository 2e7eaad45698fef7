"""Tables: one row for each engine or device, one column for each query."""

from collections.abc import Sequence
from dataclasses import dataclass

from grafana_foundation_sdk.builders import common, table
from grafana_foundation_sdk.models import common as options
from grafana_foundation_sdk.models.common import TableAutoCellOptions
from grafana_foundation_sdk.models.dashboard import DataTransformerConfig, DynamicConfigValue

from vllm_vitals.mixin.dashboards.panels import TALL, WHOLE
from vllm_vitals.mixin.dashboards.query import DATASOURCE, Format, Query, ref_id
from vllm_vitals.mixin.dashboards.theme import NO_TRAFFIC
from vllm_vitals.mixin.promql import Unavailable


@dataclass(frozen=True)
class Column:
    """A column of numbers: `query.legend` is its title."""

    query: Query
    unit: str = "short"
    bar: bool = False
    """Whether the number, a share of 1, is drawn as a bar too."""


def rows(
    title: str, why: str, labels: Sequence[str], *columns: Column, worst: str, link: str = "", hide: bool = False,
    width: int = WHOLE, none: str = NO_TRAFFIC,
) -> table.Panel:  # fmt: skip
    """Return a table with a row for each set of `labels`, the largest value of the column `worst` first.

    `link` is where the column `instance` leads; `hide` leaves the numbers out and shows the labels alone.
    """
    if not columns:
        raise Unavailable(f"nothing is left of the table {title!r}")
    made = (
        table.Panel()
        .title(title)
        .description(why)
        .datasource(DATASOURCE)
        .unit("short")
        .no_value(none)
        .span(width)
        .height(TALL)
        .filterable(filterable=True)
        .cell_options(TableAutoCellOptions())
        .sort_by([common.TableSortByFieldState().display_name(worst).desc(desc=True)])
        .with_transformation(DataTransformerConfig(id_val="merge", options={}))
        .with_transformation(DataTransformerConfig(id_val="organize", options=_order(labels, columns, hide=hide)))
    )
    for number, column in enumerate(columns):
        made = made.with_target(column.query.target(number, instant=True, form=Format.TABLE))
        made = made.override_by_name(column.query.legend, _look(column))
    if link:
        made = made.override_by_name(
            "instance", [DynamicConfigValue("links", [{"title": "Open this engine", "url": link}])]
        )  # fmt: skip
    return made


def _look(column: Column) -> list[DynamicConfigValue]:
    unit = DynamicConfigValue("unit", column.unit)
    if not column.bar:
        return [unit]
    gauge = {"type": options.TableCellDisplayMode.GAUGE, "mode": options.BarGaugeDisplayMode.BASIC}
    return [
        unit, DynamicConfigValue("min", 0), DynamicConfigValue("max", 1),
        DynamicConfigValue("custom.cellOptions", gauge), DynamicConfigValue("color", {"mode": "continuous-blues"}),
    ]  # fmt: skip


def _order(labels: Sequence[str], columns: Sequence[Column], *, hide: bool) -> dict[str, object]:
    values = [f"Value #{ref_id(number)}" if len(columns) > 1 else "Value" for number in range(len(columns))]
    names = {value: column.query.legend for value, column in zip(values, columns, strict=True)}
    shown = [*labels, *values]
    return {
        "excludeByName": {"Time": True, **dict.fromkeys(values if hide else (), True)},
        "indexByName": {name: number for number, name in enumerate(shown)},
        "renameByName": names,
        "includeByName": {},
    }
