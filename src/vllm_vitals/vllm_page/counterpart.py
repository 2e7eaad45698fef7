"""A metric of vLLM's that has the same meaning as one of ours."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from vllm_vitals.catalog import Metric


@dataclass(frozen=True)
class Native:
    """A metric of vLLM's and the metric of ours that it maps to."""

    name: str
    """Sample name, or the family name of a histogram; `NAME_sum` maps the sum of a histogram alone."""
    ours: Metric[Any]
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of ours that vLLM's metric does not have, with their values."""
    where: Mapping[str, str] = field(default_factory=dict)
    """Only vLLM's series with these labels are mapped."""
    zero_where: Mapping[str, str] = field(default_factory=dict)
    """vLLM's series with these labels count as 0: they start our series, and only the others count."""
    optional_labels: Collection[str] = ()
    """Labels of ours that are empty where vLLM's are missing."""
    superseded_by: str = ""
    """A metric of vLLM's that is used instead where a page has it, or beside which this one means something else."""
