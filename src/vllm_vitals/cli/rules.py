"""`vllm-vitals rules`: recording rules and alerts as files for Prometheus."""

from pathlib import Path

from vllm_vitals._util import files as files_
from vllm_vitals.mixin.rules import HEAD, as_data, build, dumped, files
from vllm_vitals.mixin.rules.config import RulesConfig
from vllm_vitals.mixin.rules.loading import RulesConfigError, read

MAX_BYTES = 4 * 2**20
"""Far above the size of a file of rules."""
__all__ = ["RulesConfigError", "as_text", "configuration", "write"]


def configuration(path: Path | None) -> RulesConfig:
    """Return the configuration of a file, or the defaults; raise `RulesConfigError` when it is wrong."""
    return read(path) if path else RulesConfig()


def as_text(config: RulesConfig) -> str:
    """Return all rules as one file."""
    groups = [group for made in build(config).values() for group in made]
    return HEAD + dumped(as_data(groups, config))


def write(config: RulesConfig, directory: Path) -> list[Path]:
    """Write a file for each section of rules and return the paths. Files of sections that are now off are removed."""
    directory.mkdir(parents=True, exist_ok=True)
    made = files(config)
    for name, text in made.items():
        (directory / name).write_text(text, encoding="utf-8")
    for path in directory.glob("*.yaml"):
        if path.name not in made and _is_ours(path):
            path.unlink()
    return [directory / name for name in made]


def _is_ours(path: Path) -> bool:
    """Return whether this command wrote a file. Other files are not touched."""
    try:
        return files_.read(path, MAX_BYTES).startswith(HEAD.encode())
    except OSError:
        return False
