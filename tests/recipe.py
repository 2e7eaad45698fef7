"""The recipe of CONTRIBUTING.md for a new metric, applied to a copy of the source."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def recipe() -> dict[str, list[tuple[str, str]]]:
    """Return the blocks to replace in each file, before and after."""
    (diff,) = re.findall(r"## Add a metric\n.*?```diff\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    files = re.split(r"^--- (.*)\n", diff, flags=re.MULTILINE)[1:]
    return {path: list(blocks(hunks)) for path, hunks in zip(files[::2], files[1::2], strict=True)}


def blocks(hunks: str) -> Iterator[tuple[str, str]]:
    for hunk in hunks.split("@@\n")[1:]:
        lines = hunk.splitlines(keepends=True)
        yield (
            "".join(line[1:] for line in lines if line[0] in " -"),
            "".join(line[1:] for line in lines if line[0] in " +"),
        )


def apply(copy: Path) -> None:
    """Copy the source to a directory, and apply the recipe's diff there."""
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for path, changes in recipe().items():
        text = (copy / path).read_text()
        for before, after in changes:
            assert text.count(before) == 1, f"{path} does not have these lines of the recipe once:\n{before}"
            text = text.replace(before, after)
        (copy / path).write_text(text)


def run(copy: Path, script: str) -> dict[str, Any]:
    """Run a script over the changed copy, and return the JSON that it prints."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script],
        env={"PYTHONPATH": f"{copy / 'src'}:{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer
