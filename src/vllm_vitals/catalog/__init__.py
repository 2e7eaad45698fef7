"""Every metric, declared once. Exporters, docs, dashboards and rules refer to these objects."""

from typing import Any

from vllm_vitals.catalog.cache import CACHE, LORA, SPECULATIVE
from vllm_vitals.catalog.connectors import CONNECTORS
from vllm_vitals.catalog.cost import COSTS
from vllm_vitals.catalog.engine import ENGINE, STEP
from vllm_vitals.catalog.gen_ai import GEN_AI
from vllm_vitals.catalog.gpu import GPU
from vllm_vitals.catalog.metric import Counter, Gauge, Group, Histogram, Label, Metric, Scope
from vllm_vitals.catalog.requests import REQUESTS, TOKENS
from vllm_vitals.catalog.self_metrics import SELF
from vllm_vitals.catalog.slo import SLOS

GROUPS: dict[str, Group] = {
    group.name: group
    for group in (
        ENGINE,
        STEP,
        TOKENS,
        REQUESTS,
        SLOS,
        CACHE,
        LORA,
        SPECULATIVE,
        CONNECTORS,
        COSTS,
        GEN_AI,
        GPU,
        SELF,
    )
}
CATALOG: tuple[Metric[Any], ...] = tuple(metric for group in GROUPS.values() for metric in group)

__all__ = ["CATALOG", "GROUPS", "Counter", "Gauge", "Group", "Histogram", "Label", "Metric", "Scope"]
