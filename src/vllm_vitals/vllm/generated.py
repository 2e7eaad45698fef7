"""What vLLM itself has counted in this process."""

import math

from prometheus_client import REGISTRY

GENERATED = "vllm:generation_tokens_total"


def generated() -> float:
    """Return the tokens that vLLM's own logger has counted here, 0 when it has none, NaN when it cannot be read."""
    try:
        families = REGISTRY.restricted_registry([GENERATED]).collect()
        return sum(sample.value for family in families for sample in family.samples if sample.name == GENERATED)
    except Exception:  # noqa: BLE001 - whatever is registered there; no more and no less than any other count
        return math.nan
