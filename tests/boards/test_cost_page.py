"""The queries that the page on cost tells people to use."""

import re
from pathlib import Path

import promql_parser

from vllm_vitals.catalog import CATALOG

PAGE = Path(__file__).parents[2] / "docs" / "cost.md"


def test_the_queries_of_the_page_are_of_series_that_exist() -> None:
    families = {metric.prometheus: set(metric.prometheus_labels) for metric in CATALOG}
    text = PAGE.read_text(encoding="utf-8")
    code = re.findall(r"`([^`\n]+)`", text) + re.findall(r"```promql\n(.*?)```", text, re.DOTALL)
    queries = [line for each in code for line in each.splitlines() if re.search(r"\b(rate|increase)\(", line)]
    assert len(queries) >= 9
    for query in queries:
        promql_parser.parse(query)
        for name, matchers in re.findall(r"\b((?:vllm|hw)_\w+)(?:\{([^}]*)\})?", query):
            assert name in families, query
            assert set(re.findall(r"(\w+)=", matchers)) <= families[name], query
