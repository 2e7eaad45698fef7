"""The recipe of CONTRIBUTING.md for a new metric: its panel."""

from pathlib import Path

from tests.recipe import apply, run

SCRIPT = """
import json

from vllm_vitals.mixin.dashboards import Options, build

print(json.dumps(build(Options())))
"""


def test_the_panel_of_the_recipe_asks_for_its_metric(tmp_path: Path) -> None:
    apply(tmp_path)
    boards = run(tmp_path, SCRIPT)
    asking = [
        target["expr"]
        for board in boards.values()
        for panel in board["panels"]
        for target in panel.get("targets", ())
        if panel["title"] == "Traffic between GPUs"
    ]
    assert len(asking) == 1
    assert "rate(vllm_perf_collective_traffic_bytes_total{" in asking[0]
