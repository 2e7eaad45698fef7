"""Run the smoke test on other vLLM releases, each in an environment of its own that is removed afterwards.

Run by any Python from 3.10 on, standard library only: ``python3 -m tests.live.releases [VERSION ...]``.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

from tests.live.bootstrap import CACHE, REPO, VLLM, BootstrapError, ensure_environment, environment_home, say

RELEASES: Mapping[str, Mapping[str, str]] = {
    "0.12.0": {"VLLM_CPU_OMP_THREADS_BIND": "nobind"},
    "0.16.0": {"VLLM_CPU_OMP_THREADS_BIND": "0|1"},
    "0.20.2": {"VLLM_CPU_OMP_THREADS_BIND": "0|1"},
    "0.26.0": {},
    "0.28.0": {},
}
"""Each release that is run, and what two engines of it need in their environment to share a small machine."""
TESTS = "tests/live/smoke"
LONGEST = 3600.0
"""Seconds that the tests of one release may take."""


@dataclass(frozen=True)
class Result:
    """What came of one release."""

    version: str
    trouble: str = ""
    """Why there are no counts, or why they are not good."""
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    installed: float = 0.0
    ran: float = 0.0
    """Seconds that the environment and the tests took."""

    @property
    def good(self) -> bool:
        return not self.trouble and not self.failed and self.passed > 0

    def __str__(self) -> str:
        counts = f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"
        took = f"installed in {self.installed:.0f} s, ran {self.ran:.0f} s"
        trouble = f": {self.trouble}" if self.trouble else ""
        return f"vLLM {self.version:8} {'ok  ' if self.good else 'FAIL'} {counts}; {took}{trouble}"


def run(version: str, arguments: Sequence[str], *, keep: bool = False) -> Result:
    """Make the environment of a release, run the tests in it, remove it."""
    home, begun = environment_home(version), time.monotonic()
    try:
        python = ensure_environment(version)
        installed = time.monotonic() - begun
        return _test(version, python, arguments, installed)
    except BootstrapError as error:
        return Result(version, f"no environment: {error}", installed=time.monotonic() - begun)
    except subprocess.TimeoutExpired:
        return Result(version, f"the tests had not ended after {LONGEST:.0f} s")
    finally:
        if not keep and version != VLLM:  # that one is everybody's
            shutil.rmtree(home, ignore_errors=True)


def _test(version: str, python: Path, arguments: Sequence[str], installed: float) -> Result:
    report = CACHE / "live" / f"smoke-{version}.xml"
    report.parent.mkdir(parents=True, exist_ok=True)
    report.unlink(missing_ok=True)
    say(f"testing vLLM {version}")
    begun = time.monotonic()
    command = [str(python), "-m", "pytest", TESTS, f"--junitxml={report}", *arguments]
    status = subprocess.run(command, cwd=REPO, timeout=LONGEST, check=False).returncode
    ran = time.monotonic() - begun
    if not report.is_file():
        return Result(version, f"pytest ended with status {status} and no report", installed=installed, ran=ran)
    total, failed, skipped = _counts(report)
    trouble = f"pytest ended with status {status}" if status and not failed else ""
    return Result(version, trouble, total - failed - skipped, failed, skipped, installed, ran)


def _counts(report: Path) -> tuple[int, int, int]:
    """Return how many tests ran, failed and were skipped; a test that failed twice, as in its end, counts once."""
    cases = list(ET.parse(report).getroot().iter("testcase"))  # noqa: S314 - pytest wrote it just now
    failed = sum(case.find("failure") is not None or case.find("error") is not None for case in cases)
    return len(cases), failed, sum(case.find("skipped") is not None for case in cases)


def main() -> int:
    """Run the releases that the command line names, by default all; 1 if one of them was not good."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("versions", nargs="*", metavar="VERSION", help=f"default: {', '.join(RELEASES)}")
    parser.add_argument("--keep", action="store_true", help="leave the environments where they are, some 8 GB each")
    parser.add_argument("--pytest", action="append", default=[], metavar="ARG", help="one more argument for pytest")
    options = parser.parse_args()
    os.environ.pop("VITALS_LIVE_VENV", None)  # each has its own, and what is removed afterwards is nobody else's
    results = []
    for version in options.versions or RELEASES:
        results.append(run(version, options.pytest, keep=options.keep))
        print(results[-1], flush=True)
    print("\n".join(["", "Releases of vLLM:", *map(str, results)]))
    return 0 if all(result.good for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
