"""The runner of the smoke test on other vLLM releases counts what pytest reports, and one bad release does not stop it."""

import sys
from pathlib import Path

import pytest

from tests.live import releases
from tests.live.bootstrap import BootstrapError
from tests.live.releases import Result

# What pytest 9 writes: a test that failed, and so did the end of its fixture, is there twice.
REPORT = """<testsuites><testsuite>
<testcase classname="t" name="passes" />
<testcase classname="t" name="fails"><failure message="no" /></testcase>
<testcase classname="t" name="fails_twice"><failure message="no" /></testcase>
<testcase classname="t" name="fails_twice"><error message="no" /></testcase>
<testcase classname="t" name="ends_badly"><error message="no" /></testcase>
<testcase classname="t" name="is_skipped"><skipped message="no" /></testcase>
</testsuite></testsuites>"""


def test_each_test_of_a_report_counts_once(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    assert releases._counts(report) == (5, 3, 1)


def test_only_a_release_of_which_all_tests_ran_and_passed_is_good() -> None:
    assert Result("1.0", passed=2).good
    bad = Result("1.0"), Result("1.0", passed=2, failed=1), Result("1.0", passed=2, skipped=1), Result("1.0", "no", 2)
    assert not any(result.good for result in bad)


def test_one_release_without_an_environment_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def make(version: str) -> Path:
        (tmp_path / version).mkdir()
        if version == "1.0":
            raise BootstrapError("no such wheel\nand the end of a log")
        return tmp_path / version / "python"

    monkeypatch.setattr(releases, "environment_home", lambda version: tmp_path / version)
    monkeypatch.setattr(releases, "ensure_environment", make)
    monkeypatch.setattr(releases, "_test", lambda version, *_: Result(version, passed=3))
    monkeypatch.setattr(sys, "argv", ["releases", "1.0", "2.0"])
    assert releases.main() == 1
    assert list(tmp_path.iterdir()) == []
    summary = capsys.readouterr().out.splitlines()[-2:]
    assert [line.split()[1:3] for line in summary] == [["1.0", "FAIL"], ["2.0", "ok"]]
    assert "no such wheel" in summary[0]
    assert "3 passed, 0 failed, 0 skipped" in summary[1]
