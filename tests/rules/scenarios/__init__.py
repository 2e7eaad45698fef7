"""What every alert must fire on, and what it must be silent on."""

from tests.rules.promtool import Scenario
from tests.rules.scenarios import capacity, engine, gpu, slo, telemetry

SCENARIOS: tuple[Scenario, ...] = (
    *slo.SCENARIOS, *engine.SCENARIOS, *capacity.SCENARIOS, *gpu.SCENARIOS, *telemetry.SCENARIOS,
)  # fmt: skip
