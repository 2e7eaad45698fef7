"""`README.md`, by the conventions of helm-docs: those of its templates that README.md.gotmpl uses are filled in here."""

import json
import re
from collections.abc import Iterator
from typing import Any

from helm.generate.values import Value

KINDS = {bool: "bool", int: "int", float: "float", str: "string", list: "list", dict: "object", type(None): "string"}


def readme(template: str, values: Value, chart: dict[str, Any]) -> str:
    """Return the page."""
    parts = {
        "chart.header": f"# {chart['name']}",
        "chart.description": chart["description"],
        "chart.versions": f"Chart {chart['version']}, vllm-vitals {chart['appVersion']}, Kubernetes {chart['kubeVersion'].removesuffix('-0')}.",
        "chart.valuesTable": _table(values),
    }  # fmt: skip
    return re.sub(r'\{\{ template "([\w.]+)" \. \}\}', lambda found: parts[found[1]], template)


def _table(values: Value) -> str:
    lines = ["| Key | Type | Default | Description |", "|-----|------|---------|-------------|"]
    for value in _listed(values):
        default = value.shown or f"`{json.dumps(value.default)}`"
        cells = (value.key, KINDS[type(value.default)], default, value.description)
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines)


def _listed(value: Value) -> Iterator[Value]:
    if not value.inner:
        yield value
    for inner in value.inner.values():
        yield from _listed(inner)
