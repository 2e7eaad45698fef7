"""Requests to be judged, and how the evaluator counts them."""

from typing import Any

from vllm_vitals.catalog.slo import COUNTERS
from vllm_vitals.config.settings import Slo
from vllm_vitals.records.request_batch import Requests
from vllm_vitals.records.step import Finished
from vllm_vitals.slo.evaluator import SloEvaluator

Series = dict[tuple[str, ...], float]

# Arrived at 0, queued for 1 s, prefilled for 2 s, its 5 tokens took 4 s, 0.5 s went by outside of the engine:
# its first token came after 3.5 s, the others 1 s after another.
PLAIN: dict[str, Any] = {"duration": 7.5, "queue": 1.0, "prefill": 2.0, "decode": 4.0, "inference": 6.0,
                         "time_per_output_token": 1.0, "input_tokens": 100, "output_tokens": 5}  # fmt: skip


def request(reason: str = "stop", **fields: Any) -> Finished:
    return Finished(reason, **{**PLAIN, **fields})


def slo(**fields: Any) -> Slo:
    return Slo(**{"name": "a", "target": 0.9, **fields})


def counted(slos: list[Slo], *requests: Finished) -> dict[str, Series]:
    """Return the counts of the evaluator, by metric and labels; nothing that is 0."""
    evaluator = SloEvaluator(slos)
    counts = evaluator.evaluate(Requests(requests), evaluator.new_baseline())
    return {
        metric.name.rpartition(".")[2]: {
            labels: float(count) for labels, count in zip(evaluator.labels[metric], counts[metric].ravel(), strict=True) if count
        }
        for metric in COUNTERS
    }  # fmt: skip


def verdict(of: Slo, judged: Finished) -> str:
    """Return the outcome of one request, or why it has none."""
    found = counted([of], judged)
    labels = [*found["requests"], *found["excluded"]]
    return labels[0][1] if labels else ""


def violations(of: Slo, *judged: Finished) -> Series:
    return {labels[1:]: count for labels, count in counted([of], *judged)["violations"].items()}
