"""What an expression refers to, and whether there is any such thing."""

from collections.abc import Iterator, Mapping

import promql_parser

from vllm_vitals.catalog import CATALOG, Histogram
from vllm_vitals.catalog.names import prometheus_label
from vllm_vitals.vllm_page.counterparts import NATIVES, RENAMED

PROMETHEUS = {"up": frozenset[str]()}
"""What Prometheus itself makes of a scrape, and its labels besides those of the target."""
PARTS = {"_bucket": frozenset({"le"}), "_sum": frozenset[str](), "_count": frozenset[str]()}


def exported() -> dict[str, frozenset[str]]:
    """Return every series that there can be, with its own labels: ours, vLLM's, Prometheus'."""
    known: dict[str, frozenset[str]] = dict(PROMETHEUS)
    for metric in CATALOG:
        labels = frozenset(metric.prometheus_labels)
        known[metric.prometheus] = labels
        if isinstance(metric, Histogram):
            known |= {metric.prometheus + suffix: labels | more for suffix, more in PARTS.items()}
    back = {ours: theirs for theirs, ours in RENAMED.items()}
    for native in NATIVES:
        theirs = {back.get(label, label) for label in native.ours.prometheus_labels} - set(native.labels)
        known[native.name] = frozenset(theirs | set(native.where))
    return known


def faults(expression: str, known: Mapping[str, frozenset[str]], targets: set[str]) -> Iterator[str]:
    """Yield each name in an expression that stands for nothing; `targets` are the labels that a scrape adds."""
    found: list[promql_parser.VectorSelector] = []
    grouped: set[str] = set()
    _walk(promql_parser.parse(expression), found, grouped)
    for selector in found:
        labels = known.get(selector.name or "")
        if labels is None:
            yield f"there is no series {selector.name}"
            continue
        for matcher in selector.matchers.matchers:
            if matcher.name not in labels | targets:
                yield f"{selector.name} has no label {matcher.name}"
            elif unknown := _unknown_values(selector.name or "", matcher):
                yield f"{matcher.name} of {selector.name} is never {unknown}"
    everywhere = {label for selector in found for label in known.get(selector.name or "", ())} | targets
    yield from (f"no series has a label {label}" for label in sorted(grouped - everywhere))


def _unknown_values(name: str, matcher: promql_parser.Matcher) -> str:
    """Return what a matcher asks for that a label cannot be, where all its values are known."""
    labels = (label for metric in CATALOG if metric.prometheus == name for label in metric.labels)
    for label in labels:
        if prometheus_label(label.name) == matcher.name and label.values and not label.open:
            return ", ".join(value for value in matcher.value.split("|") if value not in label.values)
    return ""


def _walk(node: promql_parser.Expr, found: list[promql_parser.VectorSelector], grouped: set[str]) -> None:
    def visit(each: promql_parser.Expr) -> bool:
        if isinstance(each, promql_parser.VectorSelector):
            found.append(each)
        if isinstance(each, promql_parser.AggregateExpr) and each.modifier:
            grouped.update(each.modifier.labels)
        if isinstance(each, promql_parser.BinaryExpr) and each.modifier and each.modifier.matching:
            grouped.update(each.modifier.matching.labels)
        return True

    promql_parser.walk(node, pre_visit=visit)
