"""`python -m helm.generate` writes every generated file of the chart; with `--check` it only names those that are stale."""

import sys

from helm.generate import ROOT
from helm.generate.files import files


def main(arguments: list[str]) -> int:
    """Write or check, and return the exit code."""
    made = files()
    stale = [path for path, content in made.items() if not path.exists() or path.read_text("utf-8") != content]
    if "--check" not in arguments:
        for path in stale:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(made[path], encoding="utf-8")
    for path in stale:
        sys.stdout.write(f"{path.relative_to(ROOT)}\n")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
