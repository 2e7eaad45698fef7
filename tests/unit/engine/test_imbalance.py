"""How unevenly engines share work: the busiest over the mean, by hand."""

import pytest

from vllm_vitals.engine.imbalance import WINDOW_SECONDS, Imbalance, Load


def look(imbalance: Imbalance, clock: float, **engines: tuple[float, float]) -> dict[str, float | None]:
    loads = {"m": {name: Load(*load) for name, load in engines.items()}} if engines else {}
    return {compared: ratio for model, compared, ratio in imbalance.update(clock, loads) if model == "m"}


def test_imbalance_is_the_busiest_over_the_mean() -> None:
    mine = Imbalance()
    assert look(mine, 0, a=(3, 100), b=(1, 900)) == {"running": 1.5, "tokens": None}  # nothing happened yet
    # running: means of 4 and 2 over two looks; tokens: 30 and 10 since the first look
    assert look(mine, 2, a=(5, 130), b=(3, 910)) == {"running": pytest.approx(4 / 3), "tokens": 1.5}


def test_imbalance_is_1_when_even_and_the_number_of_engines_at_worst() -> None:
    mine = Imbalance()
    look(mine, 0, a=(2, 0), b=(2, 0), c=(2, 0))
    assert look(mine, 1, a=(2, 7), b=(2, 7), c=(2, 7)) == {"running": 1.0, "tokens": 1.0}
    other = Imbalance()
    look(other, 0, a=(2, 0), b=(0, 0), c=(0, 0))
    assert look(other, 1, a=(2, 7), b=(0, 0), c=(0, 0)) == {"running": 3.0, "tokens": 3.0}


def test_work_before_the_window_does_not_count() -> None:
    mine = Imbalance()
    look(mine, 0, a=(9, 0), b=(0, 0))
    look(mine, 1, a=(1, 900), b=(1, 0))
    assert look(mine, 1 + WINDOW_SECONDS, a=(1, 910), b=(1, 10)) == {"running": 1.0, "tokens": 1.0}


def test_no_work_and_one_engine_have_nothing_to_compare() -> None:
    mine = Imbalance()
    for clock in (0, 1, 2):
        assert look(mine, clock, a=(0, 5), b=(0, 5)) == {"running": None, "tokens": None}
    assert look(mine, 3, a=(4, 9)) == {"running": None, "tokens": None}
    assert look(mine, 4) == {"running": None, "tokens": None}  # gone
    assert look(mine, 5) == {}


def test_a_new_engine_starts_from_its_first_sample() -> None:
    mine = Imbalance()
    look(mine, 0, a=(1, 100))
    look(mine, 1, a=(1, 150), b=(1, 1000))
    # running: 1 in three looks of three and in two of three; tokens: 100 each
    assert look(mine, 2, a=(1, 200), b=(1, 1100)) == {"running": pytest.approx(1.2), "tokens": 1.0}
