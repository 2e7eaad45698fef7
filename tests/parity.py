"""Parse metrics pages, and compare vLLM's own metrics with ours, metric by metric."""

import math
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from vllm_vitals.catalog import Metric, cache, engine, requests
from vllm_vitals.vllm_page.counterparts import NATIVES, RENAMED

EMPTY_STEPS = "vllm:iteration_tokens_total"
"""The histogram in which vLLM observes a step without tokens too, as when a client leaves. Ours does not."""
Labels = frozenset[tuple[str, str]]
Samples = dict[str, dict[Labels, float]]


def parse(text: str) -> Samples:
    """Return every sample of a page in text format by its full name and labels."""
    samples: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = frozenset((name, value) for name, value in sample.labels.items() if value)
            samples.setdefault(sample.name, {})[labels] = sample.value
    return samples


def value(samples: Samples, name: str, **labels: str) -> float:
    """Return the sum over the samples of a name that have these labels, NaN when there is none."""
    found = [
        number
        for given, number in samples.get(name, {}).items()
        if all((key, wanted) in given for key, wanted in labels.items())
    ]
    return math.fsum(found) if found else math.nan


@dataclass(frozen=True)
class Pair:
    """A metric of vLLM's, and the metric of ours that must show the same for every engine."""

    native: str
    ours: Metric[Any]
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of ours that vLLM's metric does not have. All its own labels must be equal, except for `RENAMED`."""


PAIRS = (
    *(
        Pair(native.name, native.ours, native.labels)
        for native in NATIVES
        # A superseded metric has another meaning, and iteration details give better numbers.
        if not native.superseded_by and native.ours is not engine.SCHEDULED_TOKENS
    ),
    Pair("vllm:num_requests_waiting", engine.WAITING),
    Pair("vllm:prompt_tokens_total", requests.PROMPT_TOKENS),
    Pair("vllm:spec_decode_num_accepted_tokens_total", cache.ACCEPTED_TOKENS),
)
APART = {
    "vllm:cache_config_info": "facts; ours are in vllm_engine_info",
    "vllm:prompt_tokens_cached_total": "the sum of two sources of vllm:prompt_tokens_by_source",
    "vllm:sleep_mode_operation_duration_seconds": "what the API server was asked to do, not what an engine did",
    "vllm:sleep_mode_operations_in_flight": "what the API server was asked to do, not what an engine did",
    "vllm:lora_requests_info": "adapter names joined in a label; ours is vllm_lora_requests",
}
"""Metrics of vLLM's without a counterpart of the same shape, and the reason."""


def differences(native: Samples, ours: Samples, *, apart: Container[str] = ()) -> Iterator[str]:
    """Yield a line for each number of vLLM's that ours contradict. `apart`: metrics of vLLM's to skip."""
    singles = {
        labels - {("le", "1.0")}: count
        for labels, count in native.get("vllm:request_generation_tokens_bucket", {}).items()
        if ("le", "1.0") in labels
    }
    empty = {labels: _empty_steps(native, ours, labels) for labels in native.get(f"{EMPTY_STEPS}_count", {})}
    for pair in (pair for pair in PAIRS if pair.native not in apart):
        for suffix in ("_bucket", "_count", "_sum") if pair.ours.kind == "histogram" else ("",):
            for labels, expected in native.get(pair.native + suffix, {}).items():
                if pair.ours is requests.MEAN_TIME_PER_OUTPUT_TOKEN and suffix != "_sum":
                    # vLLM observes 0 s for a request of one token, which has no time per output token.
                    expected -= singles[frozenset((n, v) for n, v in labels if n != "le")]  # noqa: PLW2901
                if pair.native == EMPTY_STEPS and suffix != "_sum":
                    expected -= empty[frozenset((n, v) for n, v in labels if n != "le")]  # noqa: PLW2901
                wanted = {RENAMED.get(name, name): text for name, text in labels} | dict(pair.labels)
                wanted = {name: text for name, text in wanted.items() if name in (*pair.ours.prometheus_labels, "le")}
                shown = value(ours, pair.ours.prometheus + suffix, **wanted)
                shown = 0.0 if math.isnan(shown) and not expected else shown
                if not math.isclose(shown, expected, rel_tol=1e-9, abs_tol=1e-9):
                    yield f"{pair.native}{suffix}{dict(labels)} is {expected}, {pair.ours.prometheus} shows {shown}"


def _empty_steps(native: Samples, ours: Samples, labels: Labels) -> float:
    """Return the number of steps that vLLM observed in addition. A missing step with tokens shows in the sum."""
    wanted = {RENAMED.get(name, name): text for name, text in labels}
    wanted = {name: text for name, text in wanted.items() if name in engine.STEP_TOKENS.prometheus_labels}
    shown = value(ours, f"{engine.STEP_TOKENS.prometheus}_count", **wanted)
    observed = native[f"{EMPTY_STEPS}_count"][labels]
    return max(0.0, observed - (0.0 if math.isnan(shown) else shown))
