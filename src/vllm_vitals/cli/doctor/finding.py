"""What a check tells."""

from dataclasses import dataclass
from enum import Enum


class Status(str, Enum):
    """How a finding bears on the start of vLLM; only `FAIL` fails the examination."""

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
    """Return a finding that is as it should be."""
    return Finding(Status.OK, found, advice)


def warn(found: str, advice: str = "") -> Finding:
    """Return a finding that need not stop anybody."""
    return Finding(Status.WARN, found, advice)


def fail(found: str, advice: str = "") -> Finding:
    """Return a finding that leaves vLLM without our metrics, or with wrong ones."""
    return Finding(Status.FAIL, found, advice)


def skip(found: str, advice: str = "") -> Finding:
    """Return what stands in for a check that does not apply."""
    return Finding(Status.SKIP, found, advice)
