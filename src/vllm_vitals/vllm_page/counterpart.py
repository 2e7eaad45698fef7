"""What it takes for a metric of vLLM's to stand for one of ours."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from vllm_vitals.catalog import Metric


@dataclass(frozen=True)
class Native:
    """A metric of vLLM's, and ours that it stands for."""

    name: str
    """That of its samples, or of the family of a histogram; with `_sum`, what the values of one add up to."""
    ours: Metric[Any]
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of ours that vLLM's does not have."""
    where: Mapping[str, str] = field(default_factory=dict)
    """Labels of the series that are meant."""
    but: Mapping[str, str] = field(default_factory=dict)
    """Labels of series that count as 0: what is meant is that of the others, and begins with these."""
    bare: Collection[str] = ()
    """Labels of ours that are empty where vLLM's are missing."""
    unless: str = ""
    """A metric of vLLM's that is taken instead where a page has it, or with which this one means something else."""
