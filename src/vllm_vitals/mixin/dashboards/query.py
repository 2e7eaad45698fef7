"""A query of a panel: an expression, and what its series are called and look like."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.models.common import DataSourceRef
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from vllm_vitals.mixin.promql import Unavailable, Vector

DATASOURCE = DataSourceRef("prometheus", "${datasource}")
Format = PromQueryFormat


@dataclass(frozen=True)
class Query:
    """An expression for a panel.

    `legend` is Grafana's template of a series' name, such as `{{engine}}`; `colours` holds the colour of each name that
    is known beforehand. A `limit` is drawn as a dashed line. `right` puts a series on an axis of its own, in that unit.
    """

    vector: Vector
    legend: str
    colours: Mapping[str, str] = field(default_factory=dict)
    limit: bool = False
    exemplars: bool = False
    right: str = ""

    def target(self, number: int, *, instant: bool, form: Format = Format.TIME_SERIES) -> Dataquery:
        """Return the query as Grafana has it, the `number`-th of its panel."""
        made = (
            Dataquery()
            .ref_id(ref_id(number))
            .datasource(DATASOURCE)
            .expr(str(self.vector))
            .legend_format(self.legend)
            .format(form)
        )
        if self.exemplars:
            made = made.exemplar(exemplar=True)
        return made.instant() if instant else made.range()


def ref_id(number: int) -> str:
    """Return the name of the `number`-th query of a panel: A to Z."""
    return chr(ord("A") + number)


def optional(make: Callable[[], Query]) -> list[Query]:
    """Return a query, or none where its source has no such metric."""
    try:
        return [make()]
    except Unavailable:
        return []
