"""What vLLM itself has counted in this process."""

from prometheus_client import REGISTRY

GENERATED = "vllm:generation_tokens_total"


def generated() -> float:
    """Return the tokens that vLLM's own logger has counted here, 0 when it has none."""
    families = REGISTRY.restricted_registry([GENERATED]).collect()
    return sum(sample.value for family in families for sample in family.samples if sample.name == GENERATED)
