"""Latencies to estimate quantiles of: recorded from a real vLLM on a CPU, and made like those of a busy GPU.

`python -m tests.bench.latencies` records anew.
"""

import asyncio
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).with_name("latencies.json")
MADE = 20_000
REQUESTS = 2_000
KEPT = 4_000
"""Most values of a kind that are written down."""

RATE = 40.0
"""Requests a second in quiet times; a burst brings one in each millisecond."""

BURST = 60
Latencies = dict[str, list[float]]


def recorded() -> Latencies:
    """Return the seconds that are written down, by kind."""
    found: Latencies = json.loads(RECORDED.read_text())
    return found


def made(seed: int = 1) -> Latencies:
    """Return seconds drawn from mixtures of lognormals: cached, ordinary and queued prompts; steps with and without one.

    One value in a hundred has a Pareto tail.
    """
    rng = random.Random(seed)
    prompts = ((0.3, -3.2, 0.3), (0.55, -1.6, 0.5), (0.15, 0.9, 0.7))
    steps = ((0.85, -3.9, 0.12), (0.15, -2.7, 0.35))
    return {"ttft": list(_mixture(rng, prompts)), "itl": list(_mixture(rng, steps))}


def _mixture(rng: random.Random, parts: tuple[tuple[float, float, float], ...]) -> Iterator[float]:
    """Yield values of parts, each with its weight, mean and deviation of the logarithm."""
    weights = [weight for weight, _, _ in parts]
    for _ in range(MADE):
        ((_, mean, deviation),) = rng.choices(parts, weights)
        tail = rng.paretovariate(1.5) if rng.random() < 0.01 else 1.0
        yield rng.lognormvariate(mean, deviation) * tail


async def _record() -> Latencies:
    """Put requests to a real engine and keep what it tells its stat loggers."""
    from vllm import SamplingParams
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.metrics.loggers import StatLoggerBase

    from tests.live.bootstrap import CACHE
    from tests.live.load import plan
    from tests.live.model import make_model

    found: Latencies = {"ttft": [], "itl": []}

    class Recorder(StatLoggerBase):  # type: ignore[misc]
        """Keeps the latencies of each step."""

        def __init__(self, *_: Any) -> None:
            pass

        def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:  # noqa: ARG002
            if iteration_stats is not None:
                found["ttft"] += iteration_stats.time_to_first_tokens_iter
                found["itl"] += iteration_stats.inter_token_latencies_iter

        def log_engine_initialized(self) -> None:
            pass

    model = str(make_model(CACHE / "tiny-model"))
    arguments = AsyncEngineArgs(model=model, dtype="float32", enforce_eager=True, max_model_len=1024, max_num_seqs=16)
    engine = AsyncLLM.from_engine_args(arguments, stat_loggers=[Recorder])

    async def ask(name: str, body: dict[str, Any]) -> None:
        sampling = SamplingParams(max_tokens=body["max_tokens"], temperature=body["temperature"])
        async for _ in engine.generate({"prompt_token_ids": body["prompt"]}, sampling, name):
            pass

    rng, asked = random.Random(1), []
    for index, request in zip(range(REQUESTS), plan(1, disconnects=False), strict=False):
        asked.append(asyncio.create_task(ask(str(index), request.body)))
        in_burst = index % (10 * BURST) < BURST
        await asyncio.sleep(0.001 if in_burst else rng.expovariate(RATE))
    await asyncio.gather(*asked)
    engine.shutdown()
    return found


def _sample(values: list[float]) -> list[float]:
    """Return values at even distances, rounded to four digits."""
    count = min(KEPT, len(values))
    return [float(f"{values[index * len(values) // count]:.4g}") for index in range(count)]


def main() -> None:
    """Record, and write down."""
    from tests.live.server import ENVIRONMENT

    os.environ |= ENVIRONMENT
    found = asyncio.run(_record())
    kept = {kind: _sample(values[len(values) // 20 :]) for kind, values in found.items()}  # without the warm-up
    RECORDED.write_text(json.dumps(kept, separators=(",", ":")) + "\n")
    print({kind: len(values) for kind, values in kept.items()}, RECORDED.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
