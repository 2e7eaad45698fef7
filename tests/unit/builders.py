"""Records, aggregators and vLLM-like stats with only the fields that a test needs."""

from types import SimpleNamespace
from typing import Any

from hypothesis import settings
from prometheus_client import CollectorRegistry

from vllm_vitals.aggregation.aggregator import Aggregator
from vllm_vitals.config.settings import Settings
from vllm_vitals.exporters.prometheus.registry import VitalsCollector
from vllm_vitals.exporters.prometheus.text import END, Renderer
from vllm_vitals.records.step import Facts, Finished, Step
from vllm_vitals.vllm.reader import Reader

MODEL = "m"
ENGINE = {"model_name": MODEL, "engine": "0"}
GEN_AI = {"gen_ai_operation_name": "chat", "gen_ai_provider_name": "vllm", "gen_ai_request_model": MODEL}
EPOCH = 1_700_000_000.0
AGE = 1000.0


class Clock:
    """Stands in for the `time` module."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return EPOCH + self.now


def examples(number: int, **others: Any) -> Any:
    """Return the settings of a property that is tried on so many examples, or on fewer where the profile says so."""
    return settings(max_examples=max(1, number * settings().max_examples // 100), **others)


def step(clock: float = 100.0, *, engine: str = "0", **fields: Any) -> Step:
    return Step(MODEL, engine, EPOCH + clock, clock, AGE, **fields)


def facts(engine: str = "0", *features: str, **fields: Any) -> Facts:
    return Facts(MODEL, engine, features=frozenset(features), **fields)


def finished(*requests: Finished, **fields: Any) -> Step:
    """Return a step in which these requests end."""
    return step(finished=list(requests), **fields)


def collect(*records: Any, **values: Any) -> Aggregator:
    """Return an aggregator with the given settings and records."""
    aggregator = Aggregator(Settings(**values))
    feed(aggregator, *records)
    return aggregator


def feed(aggregator: Aggregator, *records: Any) -> None:
    """Add records one after another, as if each came in a drain of its own."""
    for record in records:
        aggregator.add([record])


class Sight:
    """The samples of an aggregator, as a registry shows them."""

    def __init__(self, aggregator: Aggregator) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(VitalsCollector(aggregator))

    def __call__(self, name: str, **labels: str) -> float | None:
        """Return a sample's value, `None` when there is no such series."""
        return self.registry.get_sample_value(name, labels)

    def of_engine(self, name: str, engine: str = "0", **labels: str) -> float | None:
        return self(name, model_name=MODEL, engine=engine, **labels)

    def rejected(self, metric: str, reason: str) -> float:
        return self("vitals_values_rejected_total", metric=metric, reason=reason) or 0.0

    def labels(self, name: str) -> list[dict[str, str]]:
        """Return the label sets of all samples of a name."""
        return [s.labels for family in self.registry.collect() for s in family.samples if s.name == name]

    def edges(self, histogram: str, engine: str = "0") -> list[str]:
        """Return a histogram's `le` values, in order."""
        return [each["le"] for each in self.labels(f"{histogram}_bucket") if each.get("engine", engine) == engine]


def read(scheduler: Any = None, iteration: Any = None, multimodal: Any = None, **options: Any) -> Step:
    """Return what a reader makes of vLLM's stats."""
    reader = Reader(MODEL, lambda *_: None, born=100.0 - AGE, **options)
    (step,) = reader.read([(100.0, scheduler, iteration, multimodal, 0)], EPOCH - 100.0)
    return step


def iteration_stats(**fields: Any) -> SimpleNamespace:
    defaults = {"num_generation_tokens": 0, "finished_requests": []}
    return SimpleNamespace(**{**defaults, **fields})


def request_stats(reason: str = "stop", **fields: Any) -> SimpleNamespace:
    defaults = {"e2e_latency": 10.0, "queued_time": 1.0, "prefill_time": 2.0, "decode_time": 6.0, "inference_time": 8.0,
                "num_prompt_tokens": 5, "num_generation_tokens": 3, "mean_time_per_output_token": 3.0}  # fmt: skip
    return SimpleNamespace(finish_reason=reason, **{**defaults, **fields})


def page(aggregator: Aggregator, *, openmetrics: bool = False, renderer: Renderer | None = None) -> str:
    """Return the text of a scrape."""
    renderer = renderer or Renderer(aggregator.store, openmetrics=openmetrics)
    aggregator.refresh()
    renderer.forget()
    body = b"".join(renderer.render())
    return (body + (END if openmetrics else b"")).decode()
