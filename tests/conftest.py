"""How hard the tests try: a little and always the same (`test`), or much and at random (`all`); and the marks they bear.

`--effort=all`, or VITALS_TEST_EFFORT=all, tries more examples, at random; the header says by which seed. Hypothesis's
own `--hypothesis-seed` makes a run like an earlier one. `--releases` says how many releases of vLLM are read.
"""

import gc
import os
import random

import pytest

EFFORTS = ("test", "all")
FEWER = 3
"""How many times fewer examples `test` tries of a property than the test says."""
LONGEST = 3600.0
"""Seconds that a test may take that tries all."""
SEED = 20_260_101
"""What is tried when nothing is left to chance."""

try:
    import hypothesis
except ImportError:  # the tests of the dashboards, the rules and the chart have no properties
    pass
else:
    # `tests.unit.builders.examples` takes its number of examples from the ratio of these to a hundred.
    for name, count in (("test", 100 // FEWER), ("all", 100)):
        hypothesis.settings.register_profile(
            name,
            derandomize=name == "test",
            max_examples=count,
            deadline=None,
            database=None,
            print_blob=True,
            suppress_health_check=[hypothesis.HealthCheck.too_slow],  # a busy machine is no fault of a test
        )


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--effort", choices=EFFORTS, default=os.environ.get("VITALS_TEST_EFFORT", "test"), help="How hard to try."
    )
    parser.addoption(
        "--releases", choices=("few", "all"), help="How many releases of vLLM to read; goes by the effort."
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "versions: may differ between Pythons, or between releases of what we depend on")
    if config.option.effort == "all" and getattr(config.option, "timeout", None) is None:
        config.option.timeout = LONGEST
    if not hasattr(config.option, "hypothesis_profile"):
        return
    if config.option.hypothesis_profile is None:
        config.option.hypothesis_profile = config.option.effort
    if config.option.effort == "all" and config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(random.SystemRandom().randrange(2**32))


def pytest_collection_finish() -> None:
    """Leave what is imported by now out of every garbage collection to come, of which tests ask for many."""
    gc.collect()
    gc.freeze()


def pytest_report_header(config: pytest.Config) -> str:
    return f"effort: {config.option.effort}, seed {_seed(config)} (--hypothesis-seed)"


def _seed(config: pytest.Config) -> int:
    given = getattr(config.option, "hypothesis_seed", None)
    return int(given) if given and given.isdecimal() else SEED


@pytest.fixture(scope="session")
def effort(request: pytest.FixtureRequest) -> str:
    """Return `test` or `all`."""
    return str(request.config.option.effort)


@pytest.fixture(scope="session")
def seed(request: pytest.FixtureRequest) -> int:
    """Return where random tests begin: always the same place, unless all is tried."""
    return _seed(request.config)
