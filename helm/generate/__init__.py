"""Makes what the chart has generated: its schema, its README, and copies of boards and rules, which Helm wants inside."""

from pathlib import Path

CHART = Path(__file__).resolve().parents[1] / "vllm-vitals"
ROOT = CHART.parents[1]
