"""The check of our own settings."""

from collections.abc import Iterator
from functools import reduce
from typing import Any

from vllm_vitals.cli.checks.finding import Finding, fail, ok, warn
from vllm_vitals.cli.checks.launch import Launch
from vllm_vitals.configuration import Loaded, is_strict

DOCUMENTED = "`vllm-vitals settings` lists every setting and what it allows."


def settings(launch: Launch) -> Iterator[Finding]:
    """Check the settings, and tell where each that is not a default came from."""
    outcome = launch.outcome
    if isinstance(outcome, Loaded):
        told = [
            f"{'.'.join(path)} = {reduce(_part, path, outcome.settings)} (from {origin})"
            for path, origin in outcome.origins.items()
        ]
        yield ok("; ".join(told) if told else "every setting has its default")
    else:
        what_then = "vLLM will not start" if is_strict(launch.environ) else "vLLM will start without our metrics"
        for line in str(outcome).splitlines():
            yield fail(line, f"Until then {what_then}. {DOCUMENTED}")
    for line in launch.warnings:
        yield warn(line, f"Correct the name or unset it. {DOCUMENTED}")


def _part(whole: Any, name: str) -> Any:
    return whole[name] if isinstance(whole, dict) else getattr(whole, name)
