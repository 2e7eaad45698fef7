"""Histogram bucket families: vLLM's defaults under vLLM's names, those of the conventions, and ours."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

VLLM: dict[str, tuple[float, ...]] = {
    "request_latency": (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0,
                        120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
    "time_to_first_token": (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0,
                            7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
    "inter_token_latency": (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0,
                            7.5, 10.0, 20.0, 40.0, 80.0),
    "iteration_tokens": (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384),
    "request_params_n": (1, 2, 5, 10, 20),
    "request_num_preemptions": (1, 2, 3, 4, 5, 10, 20),
    "kv_cache_residency": (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120,
                           300, 600, 1200, 1800),
}  # fmt: skip
"""vLLM's families as of every release from 0.11.1 (`request_tokens` follows from the model's length)."""

OURS: dict[str, tuple[float, ...]] = {
    "step": (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.5, 10.0),
    "export": (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
    "kv_transfer_duration": (0.001, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0,
                             30.0),
    "kv_transfer_size": tuple(float(2**power) for power in range(11, 34, 2)),
    "kv_transfer_descriptors": (10, 20, 30, 50, 75, 100, 200, 400, 1000, 2000, 4000, 10000, 20000, 50000),
    "kv_lookup": (0.00001, 0.00005, 0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0),
    "gen_ai_request_duration": (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48,
                                40.96, 81.92),
    "gen_ai_time_to_first_token": (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5,
                                   5.0, 7.5, 10.0),
    "gen_ai_time_per_output_token": (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5),
}  # fmt: skip
"""Families that vLLM does not have. The convention recommends those of `gen_ai.server.*`."""

TOKENS = "request_tokens"
FAMILIES = (*VLLM, TOKENS, *OURS)
MAX_BOUNDS = 200


def one_two_five(maximum: float) -> tuple[float, ...]:
    """Return 1, 2, 5, 10, 20, 50 ... up to `maximum`, as vLLM builds `request_tokens`."""
    bounds: list[float] = []
    scale = 1
    while True:
        for step in (1, 2, 5):
            if step * scale > maximum:
                return tuple(bounds)
            bounds.append(float(step * scale))
        scale *= 10


def check(family: str, bounds: Sequence[float]) -> tuple[float, ...]:
    """Return the bounds of a family as floats, or raise a `ValueError` that describes the mistake."""
    if family not in FAMILIES:
        raise ValueError(f"unknown bucket family {family!r}; known are: {', '.join(FAMILIES)}")
    values = tuple(float(bound) for bound in bounds)
    if not 1 <= len(values) <= MAX_BOUNDS:
        raise ValueError(f"{family} has {len(values)} bounds; allowed are 1 to {MAX_BOUNDS}")
    if not all(math.isfinite(value) for value in values):
        raise ValueError(f"{family} has a bound that is not finite: {list(values)}")
    if any(high <= low for low, high in pairwise(values)):
        raise ValueError(f"{family} must ascend without repeats: {list(values)}")
    return values


def plan(max_model_len: int | None, *overrides: Mapping[str, Sequence[float]]) -> dict[str, tuple[float, ...]]:
    """Return the bounds of every family for one engine; later overrides win."""
    bounds = {**VLLM, **OURS, TOKENS: one_two_five(max_model_len or 131072) or (1.0,)}
    for override in overrides:
        bounds.update({family: check(family, values) for family, values in override.items()})
    return {family: tuple(map(float, values)) for family, values in bounds.items()}
