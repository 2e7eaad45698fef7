"""Where the numbers of a metric are: one family of series of ours, or one or several of vLLM's."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from vllm_vitals.catalog import Metric, cache, engine, requests
from vllm_vitals.mixin.promql.matchers import Match
from vllm_vitals.vllm_page.counterparts import NATIVES, RENAMED, why_missing

WHOLE: dict[Metric[Any], str] = {
    engine.WAITING: "vllm:num_requests_waiting",
    requests.PROMPT_TOKENS: "vllm:prompt_tokens_total",
    cache.ACCEPTED_TOKENS: "vllm:spec_decode_num_accepted_tokens_total",
}
"""vLLM's metrics that equal ours summed over the labels that they lack; older than those that have the labels."""
OURS_TO_VLLMS = {ours: native for native, ours in RENAMED.items()}


class Unavailable(ValueError):  # noqa: N818 - said of a metric, as something that is no failure where it is expected
    """vLLM itself exports no counterpart of a metric."""


@dataclass(frozen=True)
class Part:
    """A family of series, and how it differs from the metric that it is a part of."""

    name: str
    where: Mapping[str, Match] = field(default_factory=dict)
    adds: Mapping[str, str] = field(default_factory=dict)
    """Labels of ours that these series lack, with the value that they would have."""
    renames: Mapping[str, str] = field(default_factory=dict)
    """Labels of ours that these series have under another name."""


def ours(metric: Metric[Any], wanted: Mapping[str, Match]) -> list[Part]:
    """Return where a metric is among our own series."""
    return [Part(metric.prometheus, wanted)]


def vllms(metric: Metric[Any], wanted: Mapping[str, Match], used: Collection[str]) -> list[Part]:
    """Return where a metric is among vLLM's; raise `Unavailable` when it is not.

    `used` are the labels that the result or a matcher needs.
    """
    own = {label.name for label in metric.labels}
    if metric in WHOLE and not own & set(used):
        return [Part(WHOLE[metric], wanted)]
    found = [
        _part(native.name, wanted, native.labels, native.where)
        for native in NATIVES
        if native.ours is metric
        and not native.superseded_by
        and all(wanted[label].accepts(value) for label, value in native.labels.items() if label in wanted)
    ]
    if not found:
        asked = ", ".join(match.text(label) for label, match in wanted.items() if label in own)
        why = why_missing(metric) or "no one series of vLLM's is like it"
        raise Unavailable(f"no metric of vLLM's stands for {metric.name}{{{asked}}}: {why}")
    return found


def _part(name: str, wanted: Mapping[str, Match], adds: Mapping[str, str], where: Mapping[str, str]) -> Part:
    matches = {OURS_TO_VLLMS.get(label, label): match for label, match in wanted.items() if label not in adds}
    fixed = {label: Match("=", value) for label, value in where.items()}
    return Part(name, matches | fixed, adds, OURS_TO_VLLMS)
