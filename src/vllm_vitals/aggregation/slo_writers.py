"""Write the verdicts of service level objectives (SLOs) into the store."""

import time
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from vllm_vitals.catalog.metric import Key
from vllm_vitals.catalog.slo import OBJECTIVES, REQUESTS, TARGET, THRESHOLD
from vllm_vitals.config.settings import Slo
from vllm_vitals.records.request_batch import Requests
from vllm_vitals.slo.evaluator import SloEvaluator
from vllm_vitals.store.store import Store
from vllm_vitals.store.writers import Writer


class SloWriter(Writer):
    """Counts the verdicts on one engine's finished requests. The series exist from the start."""

    def __init__(self, store: Store, scope: Key, evaluator: SloEvaluator) -> None:
        super().__init__(store[REQUESTS], scope, partial(evaluator.evaluate, baseline=evaluator.new_baseline()))
        self._store = store
        self._labels = evaluator.labels
        self._batch_size = evaluator.batch_size
        for metric in evaluator.labels:
            for labels in evaluator.series(metric):
                store[metric].number(scope, labels)

    def take(self, records: Sequence[Requests], time: float) -> None:  # noqa: ARG002, D102
        for counts_by_metric in [
            self.read(batch) for requests in records for batch in _batches(requests, self._batch_size)
        ]:
            for metric, counts in counts_by_metric.items():
                flat = counts.ravel()
                for index in np.flatnonzero(flat).tolist():
                    self._store[metric].number(self.scope, self._labels[metric][index]).add(float(flat[index]))


def _batches(requests: Requests, size: int) -> Iterator[Requests]:
    every = requests.requests
    if len(every) <= size:
        yield requests
        return
    for first in range(0, len(every), size):
        yield Requests(every[first : first + size])


def declare(store: Store, slos: Sequence[Slo]) -> None:
    """Publish the targets and limits, which dashboards and rules read."""
    now = time.time()
    for slo in slos:
        store[TARGET].number((), (slo.name,)).set(slo.target, now)
        for objective in OBJECTIVES:
            limit = getattr(slo, objective)
            if limit is not None:
                store[THRESHOLD].number((), (slo.name, objective)).set(limit, now)
