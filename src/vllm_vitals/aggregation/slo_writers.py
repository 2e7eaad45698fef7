"""How the verdicts of service level objectives (SLOs) reach the store."""

import time
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from vllm_vitals.catalog.metric import Key
from vllm_vitals.catalog.slo import OBJECTIVES, REQUESTS, TARGET, THRESHOLD
from vllm_vitals.config.settings import Slo
from vllm_vitals.records.request_batch import Requests
from vllm_vitals.slo.evaluator import Judge
from vllm_vitals.store.store import Store
from vllm_vitals.store.writers import Writer


class SloWriter(Writer):
    """Counts the verdicts on one engine's finished requests; the series are there from the start."""

    def __init__(self, store: Store, scope: Key, judge: Judge) -> None:
        super().__init__(store[REQUESTS], scope, partial(judge.judge, usual=judge.usual()))
        self._store = store
        self._labels = judge.labels
        self._most = judge.most
        for metric in judge.labels:
            for labels in judge.series(metric):
                store[metric].number(scope, labels)

    def take(self, records: Sequence[Requests], time: float) -> None:  # noqa: ARG002, D102
        for counted in [self.read(part) for requests in records for part in _parts(requests, self._most)]:
            for metric, counts in counted.items():
                flat = counts.ravel()
                for place in np.flatnonzero(flat).tolist():
                    self._store[metric].number(self.scope, self._labels[metric][place]).add(float(flat[place]))


def _parts(requests: Requests, most: int) -> Iterator[Requests]:
    every = requests.requests
    if len(every) <= most:
        yield requests
        return
    for first in range(0, len(every), most):
        yield Requests(every[first : first + most])


def declare(store: Store, slos: Sequence[Slo]) -> None:
    """Show the targets and the limits, for dashboards and rules to read."""
    now = time.time()
    for slo in slos:
        store[TARGET].number((), (slo.name,)).set(slo.target, now)
        for objective in OBJECTIVES:
            limit = getattr(slo, objective)
            if limit is not None:
                store[THRESHOLD].number((), (slo.name, objective)).set(limit, now)
