"""What a test run says at its end."""

import json
from pathlib import Path

from tests.summary import closing, lines, read_sessions

JUNIT = """<testsuites><testsuite time="3.5">
<testcase classname="tests.unit.test_a" name="test_good"/>
<testcase classname="tests.unit.test_a" name="test_bad"><failure message="no"/></testcase>
<testcase classname="tests.unit.test_a" name="test_left"><skipped message="no gcc&#10;here"/></testcase>
</testsuite></testsuites>"""


def written(tmp_path: Path, *sessions: dict[str, object]) -> Path:
    report = tmp_path / "report.json"
    report.write_text(json.dumps({"sessions": list(sessions)}))
    return report


def test_it_says_what_ran_what_was_skipped_and_what_was_not_run(tmp_path: Path) -> None:
    (tmp_path / "unit.xml").write_text(JUNIT)
    report = written(
        tmp_path,
        {"name": "unit", "result": "failed", "duration": 5.0, "reason": None},
        {"name": "boards", "result": "skipped", "duration": 0.0, "reason": "no Python 3.11"},
    )
    sessions = read_sessions(report, tmp_path)
    text = "\n".join(lines(sessions, {"unit": "", "boards": "", "live": "(make test-more) Run everything."}))
    assert "Failed:\n  unit: tests.unit.test_a::test_bad" in text
    assert "unit: 1 tests: no gcc" in text
    assert "boards: the whole session: no Python 3.11" in text
    assert "live           (make test-more) Run everything." in text
    assert closing(sessions) == "1 passed, 1 failed, 2 skipped"


def test_a_session_that_dies_without_results_is_a_failure(tmp_path: Path) -> None:
    report = written(tmp_path, {"name": "lint", "result": "failed", "duration": 5.0, "reason": None})
    assert closing(read_sessions(report, tmp_path)) == "0 passed, 1 failed, 0 skipped"


def test_a_run_that_wrote_no_report_says_so_by_counting_nothing(tmp_path: Path) -> None:
    assert closing(read_sessions(tmp_path / "none.json", tmp_path)) == "0 passed, 0 failed, 0 skipped"
