"""When each of the usual signals misleads and saturation does not: the table of docs/headroom.md, simulated."""

from pathlib import Path
from typing import NamedTuple

import pytest

from tests.unit.engine_model import STEP, EngineModel, drive
from vllm_vitals.engine.state import Engine

PAGE = Path(__file__).parents[3] / "docs" / "headroom.md"
MINUTES = 5


class Load(NamedTuple):
    """What comes to an engine."""

    rate: float
    prompt: int
    output: int
    burst: int = 1


CASES = {
    "half loaded": (EngineModel(64, 4096, 200_000), Load(2.0, 500, 200)),
    "batch full, short prompts": (EngineModel(16, 4096, 200_000), Load(4.0, 50, 200)),
    "KV cache full, long prompts": (EngineModel(256, 8192, 100_000), Load(1.5, 8000, 200)),
    "prompts outrun the step": (EngineModel(256, 512, 2_000_000), Load(4.0, 4000, 50)),
    "bursts that are soon taken in": (EngineModel(256, 4096, 500_000), Load(3.0, 500, 100, burst=60)),
}


class Signals(NamedTuple):
    """What an operator could look at of the last minute, or at its end, and what is true of that minute."""

    queue: int
    """The longest."""
    kv: float
    running: float
    saturation: float
    kept_out: float
    """Share of the minute in which requests were kept out."""


def signals(model: EngineModel, load: Load) -> Signals:
    engine = Engine("m", "0", {}, 0.0)
    engine.set_facts(model.facts)
    kept_out, queue, step = 0, 0, None
    for step in drive(model, MINUTES * 60, load.rate, load.prompt, load.output, burst=load.burst):
        engine.add_step(step)
        if step.waiting and step.clock > (MINUTES - 1) * 60:
            kept_out += 1
            queue = max(queue, step.waiting)
    assert step is not None
    engine.take_seconds(model.clock)
    (saturation,) = (value for metric, value in engine.headroom().items() if metric.name == "vllm.engine.saturation")
    assert saturation is not None
    return Signals(
        queue,
        step.kv_cache_usage or 0.0,
        (step.running or 0) / model.most,
        saturation,
        kept_out * STEP / 60,
    )


@pytest.fixture(scope="module")
def table() -> dict[str, Signals]:
    return {name: signals(*case) for name, case in CASES.items()}


def test_saturation_shows_what_each_other_signal_misses(table: dict[str, Signals]) -> None:
    assert table["half loaded"].saturation < 0.5
    for name in ("batch full, short prompts", "KV cache full, long prompts", "prompts outrun the step"):
        assert table[name].saturation > 0.95, name
        assert table[name].kept_out > 0.95, name
    assert table["batch full, short prompts"].kv < 0.1
    assert table["KV cache full, long prompts"].running < 0.1
    assert max(table["prompts outrun the step"].kv, table["prompts outrun the step"].running) < 0.5
    bursts = table["bursts that are soon taken in"]
    assert bursts.queue > 10
    assert bursts.saturation < 0.5


def test_the_page_shows_these_figures(table: dict[str, Signals]) -> None:
    shown = [
        f"| {name} | {s.kept_out:.0%} | {s.queue} | {s.kv:.0%} | {s.running:.0%} | **{s.saturation:.2f}** |"
        for name, s in table.items()
    ]
    assert [line for line in PAGE.read_text().splitlines() if line.endswith("** |")] == shown, "\n".join(shown)
