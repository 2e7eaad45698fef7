"""The host's clock is set forward and back at any time: what is counted and shown does not follow it."""

import ast
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import vllm_vitals
from tests.unit.builders import AGE, Clock, facts
from vllm_vitals._util import clock as clocks
from vllm_vitals.aggregation import aggregator as collectors
from vllm_vitals.aggregation import merge
from vllm_vitals.aggregation.aggregator import Aggregator
from vllm_vitals.aggregation.merge import LONGEST_HOLD, Merger
from vllm_vitals.catalog.engine import RUNNING, UP
from vllm_vitals.catalog.metric import Metric
from vllm_vitals.catalog.requests import GENERATION_TOKENS
from vllm_vitals.catalog.self_metrics import STEP_AGE
from vllm_vitals.config.settings import Settings
from vllm_vitals.records.step import Sleep, Step
from vllm_vitals.store.series import NumberCell
from vllm_vitals.transport import peers as processes

SOURCE = Path(vllm_vitals.__file__).parent
STALE_AFTER = 60.0
LATER = LONGEST_HOLD + 0.5
YEAR = 365 * 86400.0


class Host(Clock):
    """A host whose clock can be set; the monotonic one cannot."""

    wall = 1.8e9

    def time(self) -> float:
        return self.wall + self.now

    def perf_counter(self) -> float:
        return self.now


JUMPS = st.lists(
    st.tuples(
        st.sampled_from(["0", "1"]),
        st.floats(0.01, 5.0),
        st.sampled_from([0.0, 0.0, -3600.0, 3600.0, -1e9, 1e9, -0.4, 0.4, 20 * YEAR, -20 * YEAR]),
        st.integers(0, 9),
    ),
    min_size=1,
    max_size=12,
)


def shown(aggregator: Aggregator, metric: Metric[Any]) -> float | None:
    """Return what an exporter reads of the engine, `None` where there is nothing."""
    aggregator.refresh()
    cell = aggregator.store[metric].cells.get(("m", "0"))
    return cell.value if isinstance(cell, NumberCell) else None


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(JUMPS)
@example([("0", 1.0, 3600.0, 3), ("1", 1.0, -3600.0, 4), ("0", 1.0, -1e9, 5), ("1", 5.0, 1e9, 6)])
def test_no_number_follows_the_hosts_clock(told: list[tuple[str, float, float, int]]) -> None:
    host = Host()
    with pytest.MonkeyPatch.context() as patched:
        for module in (collectors, merge, clocks):
            patched.setattr(module, "time", host)
        aggregator = Aggregator(Settings(stale_after=STALE_AFTER))
        merger = Merger(aggregator)
        for process in ("0", "1"):
            merger.take(process, [facts(), Sleep("m", "0", "awake")], host.now)
        tokens = 0
        for process, passed, jump, count in told:
            host.now += passed
            host.wall = max(host.wall + jump, 0.0)
            clock, tokens = host.now, tokens + count
            made = Step("m", "0", host.time(), clock, AGE, running=count, waiting=0, generation_tokens=count)
            merger.take(process, [made], clock)
            host.now += LATER
            merger.settle()
            assert shown(aggregator, GENERATION_TOKENS) == tokens
            assert shown(aggregator, RUNNING) == count
            assert shown(aggregator, UP) == 1
            assert shown(aggregator, STEP_AGE) == pytest.approx(LATER)
        host.wall += 10 * STALE_AFTER
        assert shown(aggregator, RUNNING) == count
        host.now += STALE_AFTER
        host.wall -= 20 * STALE_AFTER
        left = shown(aggregator, RUNNING)
        assert left == (None if count else 0), "silent in the middle of work, by the monotonic clock"
        assert shown(aggregator, GENERATION_TOKENS) == tokens


def test_a_process_is_gone_by_the_monotonic_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host()
    monkeypatch.setattr(processes, "time", host)
    known = processes.Processes(4)
    connection = object()
    process = known.enter(processes.Peer("p", "0", 1), connection)  # type: ignore[arg-type]
    known.leave(process, connection)  # type: ignore[arg-type]
    for jump in (3600.0, -7200.0, 1e9, -2e9):
        host.wall += jump
        assert list(known.overdue(5.0)) == []
    host.now += 5.0
    assert list(known.overdue(5.0)) == [process]


def test_decisions_follow_the_monotonic_clock() -> None:
    """The way of a step and the elections: only its time of day, which is shown, comes from the host's clock."""
    modules = [*SOURCE.glob("transport/*.py"), *SOURCE.glob("ingest/*.py"), *SOURCE.glob("deployment/*.py")]
    modules += [
        SOURCE / name for name in ("_util/clock.py", "_util/directory.py", "aggregation/merge.py", "vllm/life.py")
    ]
    readers = {path.name for path in modules if any(_reads_the_hosts_clock(path))}
    assert readers == {"clock.py"}


def _reads_the_hosts_clock(path: Path) -> list[ast.Attribute]:
    return [
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and node.attr in {"time", "time_ns", "now", "utcnow"}
        and isinstance(node.value, ast.Name)
        and node.value.id in {"time", "datetime"}
    ]
