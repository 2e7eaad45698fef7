"""A tiny model, servers that tests share, and how long it took until all was as it should be again.

Tests run in the order of what they need, so that few servers run at a time: `LAYOUTS` first, files of `LAST` last.
While tests work with one shared server, the next one starts.
"""

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live import breakable, layouts
from tests.live.fleet import Fleet
from tests.live.load import put_load
from tests.live.model import make_model
from tests.live.pages import Recovers, took

__all__ = ["put_load"]
HERE = Path(__file__).parent
LAYOUTS = layouts.LAYOUTS | breakable.LAYOUTS
LAST = ("alerts", "otlp", "chart", "elastic", "killed", "start", "native", "outages")
"""Files whose tests break what they use, in this order after all others."""
TIMEOUT = 900
"""Seconds that a test and the servers that it waits for may take, beside other work."""
FRESH = "fresh"
"""Marks tests that are the first of a shared server: what it has done before would be in their way."""
FLEET = pytest.StashKey[Fleet]()
NEEDS = pytest.StashKey[dict[str, set[str]]]()
"""What is shared and still needed, by the test."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{FRESH}: the server must have done nothing before")


@pytest.hookimpl(trylast=True)  # after pytest has grouped them by their parameters
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    ours = [item for item in items if HERE in item.path.parents]
    for item in ours:
        item.add_marker(pytest.mark.timeout(TIMEOUT))
    config.stash[NEEDS] = {item.nodeid: needed(item) for item in ours}
    others = [item for item in items if item not in set(ours)]
    items[:] = others + sorted(ours, key=lambda item: place(item, config.stash[NEEDS][item.nodeid]))


def needed(item: pytest.Item) -> set[str]:
    """Return the names of what is shared that a test asks for, as a fixture or as a parameter."""
    given = getattr(item, "callspec", None)
    asked = {each for each in given.params.values() if isinstance(each, str)} if given else set()
    return (asked | set(getattr(item, "fixturenames", ()))) & set(LAYOUTS)


def place(item: pytest.Item, names: set[str]) -> tuple[int, int, int]:
    """Return where a test stands: what shares nothing and breaks nothing comes first."""
    order, file = list(LAYOUTS), item.path.stem.removeprefix("test_")
    late = LAST.index(file) + 1 if file in LAST else 0
    if names:
        return 1, max(map(order.index, names)), -1 if item.get_closest_marker(FRESH) else late
    return (2, late, 0) if late else (0, 0, 0)


@pytest.hookimpl(trylast=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Start what is needed next, while this test runs."""
    fleet, needs = item.config.stash.get(FLEET, None), item.config.stash[NEEDS]
    if fleet is not None:
        later = item.session.items[item.session.items.index(item) + 1 :]
        others = (needs.get(other.nodeid, set()) - needs[item.nodeid] for other in later)
        if new := next(filter(None, others), None):
            fleet.begin(min(new, key=list(LAYOUTS).index))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End what no other test needs."""
    fleet = item.config.stash.get(FLEET, None)
    if fleet is not None:
        rest = item.session.items[item.session.items.index(nextitem) :] if nextitem else []
        needs = item.config.stash[NEEDS]
        for name in needs.get(item.nodeid, set()) - set().union(*(needs.get(other.nodeid, set()) for other in rest)):
            fleet.end(name)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def fleet(request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    def maker(name: str) -> Callable[[], Any]:
        return lambda: LAYOUTS[name](model, tmp_path_factory.mktemp(name))

    made = Fleet({name: maker(name) for name in LAYOUTS})
    request.config.stash[FLEET] = made
    try:
        yield made
    finally:
        made.close()


def shared(name: str) -> Any:
    """Return the fixture of a layout."""

    @pytest.fixture(scope="session", name=name)
    def give(fleet: Fleet) -> Any:
        return fleet.get(name)

    return give


globals().update({f"_{name}": shared(name) for name in LAYOUTS})


@pytest.fixture
def recovers(record_property: Callable[[str, object], None]) -> Recovers:
    """Give what waits until all is as it should be, and has the summary say how long that took."""

    def wait(check: Callable[[], bool], seconds: float, *, since: float | None = None, what: str = "recovered") -> bool:
        before = 0.0 if since is None else time.monotonic() - since
        spent = took(check, seconds)
        record_property(f"{what} after", f"{before + spent:.2f} s")
        return spent < math.inf

    return wait


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show what tests measured, of those that passed as well."""
    for report in terminalreporter.getreports("passed") + terminalreporter.getreports("failed"):
        for name, measured in report.user_properties:
            terminalreporter.write_line(f"{report.nodeid}: {name} {measured}")
