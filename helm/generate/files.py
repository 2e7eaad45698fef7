"""Every generated file of the chart, and what it shall hold."""

from pathlib import Path

import yaml

from helm.generate import CHART, ROOT
from helm.generate.readme import readme
from helm.generate.rules import rules
from helm.generate.schema import schema
from helm.generate.values import read

BOARDS = ROOT / "dashboards"


def files() -> dict[Path, str]:
    """Return the content of each generated file by its path."""
    values = read((CHART / "values.yaml").read_text("utf-8"))
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    template = (CHART / "README.md.gotmpl").read_text("utf-8")
    made = {
        CHART / "values.schema.json": schema(values),
        CHART / "README.md": readme(template, values, chart),
        CHART / "files" / "rules.yaml": rules(),
    }
    # Helm reads no file outside of its chart.
    boards = {CHART / "files" / "dashboards" / each.name: each.read_text("utf-8") for each in BOARDS.glob("*.json")}
    return made | boards
