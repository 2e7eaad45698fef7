"""The result of a check."""

from dataclasses import dataclass
from enum import Enum


class Status(str, Enum):
    """What a finding means for the start of vLLM. Only `FAIL` makes the command fail."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True)
class Finding:
    """What one check found, and what to do about it."""

    status: Status
    found: str
    advice: str = ""
    id: str = ""


def ok(found: str, advice: str = "") -> Finding:
    """Return a finding without a problem."""
    return Finding(Status.OK, found, advice)


def warn(found: str, advice: str = "") -> Finding:
    """Return a problem that need not stop the start."""
    return Finding(Status.WARN, found, advice)


def fail(found: str, advice: str = "") -> Finding:
    """Return a problem that leaves vLLM without our metrics, or with wrong ones."""
    return Finding(Status.FAIL, found, advice)


def skip(found: str, advice: str = "") -> Finding:
    """Return why a check does not apply."""
    return Finding(Status.SKIP, found, advice)
