"""PromQL over catalogue objects: a metric, label or value that does not exist cannot be written."""

from vllm_vitals.mixin.promql.functions import (
    absent,
    avg_by,
    bottomk,
    call,
    clamp,
    count_by,
    joined,
    max_by,
    min_by,
    over_time,
    ratio,
    relabelled,
    sum_by,
    topk,
)
from vllm_vitals.mixin.promql.matchers import (
    TARGET_LABELS,
    Match,
    Wanted,
    any_of,
    is_not,
    matching,
    none_of,
    not_matching,
)
from vllm_vitals.mixin.promql.parts import Unavailable
from vllm_vitals.mixin.promql.queries import Histograms, Queries, Source
from vllm_vitals.mixin.promql.recording import Recording
from vllm_vitals.mixin.promql.vector import Vector

__all__ = [
    "TARGET_LABELS", "Histograms", "Match", "Queries", "Recording", "Source", "Unavailable", "Vector", "Wanted", "absent",
    "any_of", "avg_by", "bottomk", "call", "clamp", "count_by", "is_not", "joined", "matching", "max_by", "min_by",
    "none_of", "not_matching", "over_time", "ratio", "relabelled", "sum_by", "topk",
]  # fmt: skip
