"""Grafana's dashboards, made of catalogue metrics; needs the extra `dashboards` and Python 3.11."""

from typing import Any

from vllm_vitals.mixin.dashboards import cache, engine, fleet, gpu, latency, telemetry
from vllm_vitals.mixin.dashboards.board import Board, Options, encode

BOARDS: tuple[Board, ...] = (fleet.BOARD, engine.BOARD, latency.BOARD, cache.BOARD, gpu.BOARD, telemetry.BOARD)

__all__ = ["BOARDS", "Board", "Options", "build"]


def build(options: Options) -> dict[str, dict[str, Any]]:
    """Return Grafana's JSON of every board that the source has anything for, by the board's name."""
    there = [board for board in BOARDS if board.build(options, ())]
    made = {board.name: board.build(options, [other for other in there if other is not board]) for board in there}
    return {name: encode(board) for name, board in made.items() if board}
