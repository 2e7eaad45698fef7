"""Every metric, declared once. Exporters, docs, dashboards and rules refer to these objects."""

from typing import Any

from vllm_vitals.catalog.cache import CACHE, LORA, SPECULATIVE
from vllm_vitals.catalog.connectors import CONNECTORS
from vllm_vitals.catalog.cost import COSTS
from vllm_vitals.catalog.engine import ENGINE, STEP
from vllm_vitals.catalog.gen_ai import GEN_AI
from vllm_vitals.catalog.gpu import GPU
from vllm_vitals.catalog.metric import Counter, Gauge, Histogram, Label, Metric, Scope
from vllm_vitals.catalog.requests import REQUESTS, TOKENS
from vllm_vitals.catalog.self_metrics import SELF
from vllm_vitals.catalog.slo import SLOS

GROUPS: dict[str, tuple[Metric[Any], ...]] = {
    "engine": ENGINE,
    "step": STEP,
    "tokens": TOKENS,
    "requests": REQUESTS,
    "slo": SLOS,
    "cache": CACHE,
    "lora": LORA,
    "speculative": SPECULATIVE,
    "connectors": CONNECTORS,
    "cost": COSTS,
    "conventions": GEN_AI,
    "gpu": GPU,
    "itself": SELF,
}
CATALOG: tuple[Metric[Any], ...] = tuple(metric for group in GROUPS.values() for metric in group)

__all__ = ["CATALOG", "GROUPS", "Counter", "Gauge", "Histogram", "Label", "Metric", "Scope"]
