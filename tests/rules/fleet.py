"""Series of engines as a scrape in Kubernetes stores them, in promtool's notation.

Names are written out here and nowhere derived, so that a rule that asks for another finds nothing.
"""

from collections.abc import Mapping

SERVICE = {"cluster": "c", "namespace": "n", "job": "vllm"}
MODEL = {**SERVICE, "model_name": "m"}
WHERE_SERVICE = ", cluster c, namespace n, job vllm"


def replica(place: int = 0) -> dict[str, str]:
    """Return the labels of a replica."""
    return {**SERVICE, "pod": f"vllm-{place}", "instance": f"10.0.0.{place}:9464"}


def engine(place: int = 0, rank: int = 0) -> dict[str, str]:
    """Return the labels of an engine."""
    return {**replica(place), "model_name": "m", "engine": str(rank)}


def where(place: int = 0) -> str:
    """Return the end of a summary of an alert on something of a replica."""
    return f"{WHERE_SERVICE}, pod vllm-{place}, instance 10.0.0.{place}:9464"


def series(name: str, labels: Mapping[str, str], **more: str) -> str:
    """Return a series' name with its labels."""
    inside = ", ".join(f'{label}="{value}"' for label, value in {**labels, **more}.items())
    return f"{name}{{{inside}}}"


def healthy(place: int = 0, rank: int = 0, steps: int = 600, **other: str) -> dict[str, str]:
    """Return the series of an engine that does well, sampled once a minute; `other` has values by short names."""
    of, at = engine(place, rank), replica(place)
    values = {
        "running": f"8x{steps}", "capacity": f"0x{steps}", "deferred": f"0x{steps}", "age": f"0.1x{steps}", "up": f"1x{steps}",
        "awake": f"1x{steps}", "paused": f"0x{steps}", "offloaded": f"0x{steps}", "saturation": f"0.4x{steps}",
        "usage": f"0.3x{steps}", "tokens": f"0+6000x{steps}", "stop": f"0+60x{steps}", "abort": f"0+2x{steps}",
        "error": f"0x{steps}", "preempted": f"0x{steps}", "target_up": f"1x{steps}", **other,
    }  # fmt: skip
    names = {
        "running": series("vllm_engine_requests_running", of),
        "capacity": series("vllm_engine_requests_waiting", of, reason="capacity"),
        "deferred": series("vllm_engine_requests_waiting", of, reason="deferred"),
        "age": series("vitals_step_age_seconds", of),
        "up": series("vllm_engine_up", of),
        "awake": series("vllm_engine_sleep", of, state="awake"),
        "paused": series("vllm_engine_sleep", of, state="paused"),
        "offloaded": series("vllm_engine_sleep", of, state="weights_offloaded"),
        "saturation": series("vllm_engine_saturation_ratio", of),
        "usage": series("vllm_kv_cache_usage_ratio", of),
        "tokens": series("vllm_step_scheduled_tokens_total", of, phase="decode"),
        "stop": series("vllm_requests_finished_total", of, finish_reason="stop"),
        "abort": series("vllm_requests_finished_total", of, finish_reason="abort"),
        "error": series("vllm_requests_finished_total", of, finish_reason="error"),
        "preempted": series("vllm_requests_preempted_total", of),
        "target_up": series("up", at),
    }
    return {names[short]: value for short, value in values.items() if value}
