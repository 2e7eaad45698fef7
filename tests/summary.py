"""Say at the end of a test run what ran, what was skipped and why, and how to run the rest.

Run by the Makefile: ``python -m tests.summary REPORT RESULTS``, with the report that nox wrote and the directory of the
sessions' JUnit files. Standard library only.
"""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

NOX = [sys.executable, "-m", "nox"]
STATUS = {"success": "ok", "failed": "FAILED", "skipped": "skipped", "aborted": "aborted"}
TARGETS = {"test": "make test", "more": "make test-more", "all": "make test-all"}
"""What runs the sessions that have a tag first."""
WIDEST = 110
"""Characters of a reason that are shown."""


@dataclass
class Tests:
    """What the tests of a session came to."""

    seconds: float = 0.0
    passed: int = 0
    failures: list[str] = field(default_factory=list)
    skips: Counter[str] = field(default_factory=Counter)
    """How many tests were skipped for each reason."""


@dataclass
class Session:
    """A session of nox that was asked for."""

    name: str
    status: str
    reason: str
    """Why it was skipped."""
    seconds: float
    """How long it took, with the installation of what it needs."""
    tests: Tests | None
    """`None` where it ran none, such as a check of style."""


def read_tests(path: Path) -> Tests | None:
    """Return what a JUnit file says, `None` when there is none."""
    if not path.is_file():
        return None
    root = ET.parse(path)  # noqa: S314 - pytest wrote it
    found = Tests(seconds=sum(float(suite.get("time", 0)) for suite in root.iter("testsuite")))
    for case in root.iter("testcase"):
        name = f"{case.get('classname', '')}::{case.get('name', '')}"
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            found.failures.append(name)
        elif skipped is not None:
            found.skips[_first_line(skipped.get("message") or "no reason given")] += 1
        else:
            found.passed += 1
    return found


def read_sessions(report: Path, results: Path) -> list[Session]:
    """Return the sessions that a report of nox names, each with what its tests came to."""
    reported = json.loads(report.read_text())["sessions"] if report.is_file() else []
    return [_session(each, results) for each in reported]


def _session(reported: dict[str, Any], results: Path) -> Session:
    name, seconds = reported["name"], float(reported.get("duration") or 0)
    reason = reported.get("reason") or "its output above says why"
    return Session(name, reported["result"], reason, seconds, read_tests(results / f"{name}.xml"))


def lines(sessions: list[Session], known: dict[str, str]) -> Iterator[str]:
    """Yield the summary; `known` has what each session that exists does."""
    yield f"{'session':<14} {'':<8} {'passed':>7} {'failed':>7} {'skipped':>7} {'seconds':>8} {'of set-up':>9}"
    for each in sessions:
        row = f"{each.name:<14} {STATUS.get(each.status, each.status):<8}"
        tests = each.tests or Tests(each.seconds)
        counts = f"{tests.passed:>7} {len(tests.failures):>7} {tests.skips.total():>7}" if each.tests else " " * 23
        yield f"{row} {counts} {tests.seconds:>8.0f} {max(each.seconds - tests.seconds, 0):>9.0f}"
    yield from _failures(sessions)
    yield from _skips(sessions)
    rest = {name: what for name, what in known.items() if name not in {each.name for each in sessions}}
    if rest:
        yield ""
        yield "Not run now; `.venv/bin/nox -s NAME` runs one of them, `make test-all` everything:"
        yield from (f"  {name:<14} {what}" for name, what in rest.items())
    yield ""
    yield closing(sessions)


def closing(sessions: list[Session]) -> str:
    """Return the last line; a session that failed otherwise than by a test counts as one failure."""
    tests = [each.tests for each in sessions if each.tests]
    failed = sum(len(each.failures) for each in tests) + len([each for each in sessions if _is_broken(each)])
    skipped = sum(each.skips.total() for each in tests) + len([each for each in sessions if each.status == "skipped"])
    return f"{sum(each.passed for each in tests)} passed, {failed} failed, {skipped} skipped"


def _is_broken(session: Session) -> bool:
    return session.status in ("failed", "aborted") and not (session.tests and session.tests.failures)


def _failures(sessions: list[Session]) -> Iterator[str]:
    failed = [(each.name, name) for each in sessions if each.tests for name in each.tests.failures]
    if failed:
        yield ""
        yield "Failed:"
        yield from (f"  {session}: {name}" for session, name in failed)
    for each in filter(_is_broken, sessions):
        yield f"  {each.name}: ended without a result of its tests; its output above says why"


def _skips(sessions: list[Session]) -> Iterator[str]:
    skips = [
        (each.name, reason, count) for each in sessions if each.tests for reason, count in each.tests.skips.items()
    ]
    skipped = [each for each in sessions if each.status == "skipped"]
    if skips or skipped:
        yield ""
        yield "Skipped, and why:"
        yield from (f"  {each.name}: the whole session: {each.reason}" for each in skipped)
        yield from (f"  {name}: {count} tests: {reason}" for name, reason, count in skips)


def _first_line(text: str) -> str:
    line = text.strip().splitlines()[0] if text.strip() else ""
    return line if len(line) <= WIDEST else f"{line[:WIDEST]}..."


def _known() -> dict[str, str]:
    """Return what each session does and by which command of make it is run."""
    command = [*NOX, "--list", "--json", "--tags", *TARGETS]
    listed = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return {each["session"]: f"({TARGETS[each['tags'][0]]}) {each['description']}" for each in listed}


if __name__ == "__main__":
    print()
    for line in lines(read_sessions(Path(sys.argv[1]), Path(sys.argv[2])), _known()):
        print(line)
