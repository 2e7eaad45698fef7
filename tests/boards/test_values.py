"""What panels show of numbers that are worked out by hand, as Prometheus itself answers."""

from pathlib import Path

import pytest

from tests.boards.expressions import DASHBOARDS, load, panels, substituted
from tests.rules.promtool import recorded, run
from vllm_vitals.mixin.rules import RulesConfig

LOOKED_UP = {
    "cache.json": ('vllm_prefix_cache_{}_tokens_total{{{}, tier="{}"}}', ("local", "external"), ("queried", "hit")),
    "native/cache.json": ("vllm:{2}prefix_cache_{0}_total{{{1}}}", ("", "external_"), ("queries", "hits")),
}
"""How the tokens looked up and found are called, here and there: the name, the tiers, the two."""


def shown(board: str, title: str) -> str:
    """Return the only query of a panel over five minutes."""
    (panel,) = [each for each in panels(load(DASHBOARDS / board)) if each["title"] == title]
    (target,) = panel["targets"]
    return substituted(target["expr"], interval="5m")


@pytest.mark.parametrize("board", LOOKED_UP)
@pytest.mark.parametrize(
    ("title", "expected"),
    [
        # of 1000 + 1000 tokens a minute 600 + 100 are found here, and of the 400 that the first lacked 100 elsewhere
        ("Prefix cache hits", {"": 0.4}),
        ("Prefix cache hits by engine", {'engine="0", instance="a", model_name="m"': 0.7, 'engine="0", instance="b", model_name="m"': 0.1}),
    ],
)  # fmt: skip
def test_a_token_that_two_tiers_are_asked_for_is_one(
    board: str, title: str, expected: dict[str, float], tmp_path: Path
) -> None:
    name, (local, external), (asked, found) = LOOKED_UP[board]
    given = {
        name.format(what, f'instance="{instance}", model_name="m", engine="0"', tier): f"0+{tokens}x30"
        for instance, tier, what, tokens in (
            ("a", local, asked, 1000), ("a", local, found, 600), ("a", external, asked, 400), ("a", external, found, 100),
            ("b", local, asked, 1000), ("b", local, found, 100),
        )
    }  # fmt: skip
    rounded = f"round({shown(board, title)}, 0.001)"
    answers = {f"{{{labels}}}": share for labels, share in expected.items()}
    assert run([recorded("values", given, {rounded: answers}, "20m")], tmp_path, RulesConfig()) == ""
