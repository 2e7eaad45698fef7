"""What a command says where its output cannot be written: one line, and exit code 2."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = [sys.executable, "-c", "from vllm_vitals.cli import app; app()"]
FULL = Path("/dev/full")
"""A device to which nothing can be written."""


def run(*words: object, stdout: Path | None = None) -> tuple[int, str]:
    """Return the exit code of a command, and its standard error."""
    with (stdout or Path("/dev/null")).open("w") as out:
        done = subprocess.run(
            [*PROGRAM, *map(str, words)], stdout=out, stderr=subprocess.PIPE, text=True, timeout=120, check=False
        )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    "words", [["metrics"], ["metrics", "--json"], ["settings", "--markdown"], ["rules", "--stdout"], ["doctor"]]
)
def test_standard_output_that_takes_nothing(words: list[str]) -> None:
    assert run(*words, stdout=FULL) == (2, "vllm-vitals: [Errno 28] No space left on device\n")


def test_standard_output_that_is_closed_is_nobodys_fault() -> None:
    done = subprocess.run(
        ["sh", "-c", '"$0" "$@" >&-', *PROGRAM, "--version"],
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_place_that_is_no_directory(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for out in (file, file / "below"):
        code, said = run("rules", "--out", out)
        assert code == 2
        assert said.startswith(f"vllm-vitals rules: cannot write to {out}: ")
        assert said.count("\n") == 1


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "gpu.yaml").mkdir()
    code, said = run("rules", "--out", tmp_path)
    assert (code, said.count("\n")) == (2, 1)
    assert f"cannot write to {tmp_path}: [Errno 21] Is a directory: '{tmp_path / 'gpu.yaml'}'" in said
