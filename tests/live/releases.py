"""Run the smoke test on other vLLM releases, each in an environment of its own that is removed afterwards.

Run by any Python from 3.10 on, standard library only: ``python3 -m tests.live.releases [VERSION ...]``.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

from tests.live.bootstrap import CACHE, REPO, VLLM, ensure_environment, environment_home, say

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
        return not self.trouble and not self.failed and not self.skipped and self.passed > 0

    def __str__(self) -> str:
        counts = f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"
        took = f"installed in {self.installed:.0f} s, ran {self.ran:.0f} s"
        trouble = f": {self.trouble.splitlines()[0]}" if self.trouble else ""
        return f"vLLM {self.version:8} {'ok  ' if self.good else 'FAIL'} {counts}; {took}{trouble}"


def run(version: str, *, keep: bool = False) -> Result:
    """Make the environment of a release, run the tests in it, remove it."""
    home, begun = environment_home(version), time.monotonic()
    try:
        python = ensure_environment(version)
        installed = time.monotonic() - begun
        return _test(version, python, installed)
    except Exception as error:  # noqa: BLE001 - the other releases shall be run
        say(f"vLLM {version} was not tested: {error}")
        return Result(version, f"{type(error).__name__}: {error}", installed=time.monotonic() - begun)
    finally:
        if not keep and version != VLLM:  # that one is everybody's
            shutil.rmtree(home, ignore_errors=True)


def _test(version: str, python: Path, installed: float) -> Result:
    report = CACHE / "live" / f"smoke-{version}.xml"
    report.parent.mkdir(parents=True, exist_ok=True)
    report.unlink(missing_ok=True)
    say(f"testing vLLM {version}")
    begun = time.monotonic()
    command = [str(python), "-m", "pytest", TESTS, f"--junitxml={report}"]
    status = subprocess.run(command, cwd=REPO, timeout=LONGEST, check=False).returncode
    ran = time.monotonic() - begun
    if not report.is_file():
        return Result(version, f"pytest ended with status {status} and no report", installed=installed, ran=ran)
    total, failed, skipped = _counts(report)
    trouble = f"pytest ended with status {status}" if status and not failed else ""
    return Result(version, trouble, total - failed - skipped, failed, skipped, installed, ran)


def _counts(report: Path) -> tuple[int, int, int]:
    """Return how many tests ran, failed and were skipped; pytest has one twice that failed and whose fixtures failed too."""
    found: dict[str, set[str]] = {"failure": set(), "error": set(), "skipped": set()}
    total = set()
    for case in ET.parse(report).getroot().iter("testcase"):  # noqa: S314 - pytest wrote it just now
        name = f"{case.get('classname')}.{case.get('name')}"
        total.add(name)
        for kind, names in found.items():
            if case.find(kind) is not None:
                names.add(name)
    return len(total), len(found["failure"] | found["error"]), len(found["skipped"])


def main() -> int:
    """Run the releases that the command line names, by default all; 1 if one of them was not good."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("versions", nargs="*", metavar="VERSION", help=f"default: {', '.join(RELEASES)}")
    parser.add_argument("--keep", action="store_true", help="leave the environments where they are, some 8 GB each")
    options = parser.parse_args()
    os.environ.pop("VITALS_LIVE_VENV", None)  # each has its own, and what is removed afterwards is nobody else's
    results = []
    for version in options.versions or RELEASES:
        results.append(run(version, keep=options.keep))
        print(results[-1], flush=True)
    print("\n".join(["", "Releases of vLLM:", *map(str, results)]))
    return 0 if all(result.good for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
