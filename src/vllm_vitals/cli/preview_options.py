"""What a preview of dashboards needs from the command line, without the packages that draw it."""

from dataclasses import dataclass
from pathlib import Path

from vllm_vitals.mixin.promql import Histograms, Source

FAILED, WRONG = 1, 2
"""Exit codes: the command could not do its work, and the command line or a path is wrong."""


@dataclass(frozen=True)
class PreviewOptions:
    """The options of a preview. No `boards` means all of them."""

    boards: tuple[str, ...]
    prometheus: str
    out: Path
    span: str
    until: str
    scrape: str
    variables: tuple[str, ...]
    source: Source
    histograms: Histograms
