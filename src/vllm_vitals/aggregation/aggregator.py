"""The aggregator: adds records up in the store, which every exporter reads."""

import logging
import platform
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

import vllm_vitals
from vllm_vitals._util.labels import label
from vllm_vitals._util.log import log_once
from vllm_vitals._util.pacing import checkpoint
from vllm_vitals.aggregation.cost import Costs
from vllm_vitals.aggregation.gpu_writers import GpuWriters
from vllm_vitals.aggregation.kv_writers import ConnectorWriter
from vllm_vitals.aggregation.slo_writers import SloWriter, declare
from vllm_vitals.catalog import CATALOG, self_metrics
from vllm_vitals.catalog.buckets import plan
from vllm_vitals.catalog.cache import KV_FREE, SAVED_PREFILL
from vllm_vitals.catalog.engine import IMBALANCE, LIMITED, UP
from vllm_vitals.catalog.metric import Gauge, Metric, Scope
from vllm_vitals.catalog.requests import ABANDONED
from vllm_vitals.config.settings import Settings
from vllm_vitals.engine.imbalance import WINDOW_SECONDS, Imbalance, loads
from vllm_vitals.engine.state import Engine, WritersByRecord, split_late
from vllm_vitals.records.gpu import Sample
from vllm_vitals.records.request_batch import Requests
from vllm_vitals.records.step import OTHER, Facts, Finished, Gone, Health, Record, Rejection, Sleep, Step
from vllm_vitals.slo.evaluator import SloEvaluator
from vllm_vitals.store.store import MAX_SCOPES, Store
from vllm_vitals.store.writers import GaugeWriter, Writer, prepare, scope_key, writers

EXEMPLAR_LENGTH = 128 - len("request_id")
"""OpenMetrics allows 128 characters for the label names and values of an exemplar."""

EngineKey = tuple[str, str]
"""Model and engine."""
Watermarks = Callable[[EngineKey], tuple[float, float]]
"""Returns the watermark of an engine, and the skew between its serving processes: see `Aggregator.flush`."""

EMBEDDINGS = "embeddings"
"""gen_ai.operation.name of pooling models, unless it is set."""

MAX_UNSETTLED_REQUESTS = 128
"""Finished requests of an engine that are kept to be added up together. A read adds them up in any case."""


class Aggregator:
    """Adds records up by the catalogue. Any thread may call it, except vLLM's event loop."""

    def __init__(
        self,
        settings: Settings,
        metrics: Sequence[Metric[Any]] = CATALOG,
        *,
        process: str = "0",
        source: str = "plugin",
        before_read: Callable[[], None] | None = None,
    ) -> None:
        """`process`: label of the errors of this process. `source`: source of the numbers.

        `before_read` adds the records that wait. It is called before each read.
        """
        self.process = process
        self._before_read = before_read
        self._settings = settings
        self._metrics = [
            metric for metric in metrics if settings.gen_ai.enabled or metric.scope is not Scope.CONVENTION
        ]
        self._engines: dict[EngineKey, Engine] = {}
        self._models: dict[str, list[Writer]] = {}
        self._pooling: set[str] = set()
        """Pooling models: their requests ask for embeddings, or values made of these."""
        self._adders: dict[type, Callable[[Any], None]] = {
            Step: self._add_steps,
            Facts: self._add_facts,
            Sleep: self._add_sleeps,
            Rejection: self._add_rejections,
            Gone: self._add_gone,
            Health: self._add_health,
            Sample: self._add_samples,
        }
        self.store = Store(self._metrics, exponential=settings.otlp.histograms == "exponential")
        self._bounds = plan(None, settings.buckets)
        self._imbalance = Imbalance()
        self._costs = Costs(self.store, settings.price)
        self._slo_evaluator = SloEvaluator(settings.slos) if settings.slos else None
        declare(self.store, settings.slos)
        of_process = self._make_writers("", "", self._bounds, Scope.PROCESS)
        self._process, self._gpus = of_process[Health], GpuWriters(of_process[Sample])
        self._processes: set[str] = set()
        """Known serving processes, this one included."""
        self._add_process(Health(process=process))
        for metric in self._in_scope(Scope.PROCESS):
            if metric.record is not Health:
                prepare(self.store[metric], (), self._bounds, settings)
        info = (vllm_vitals.__version__, platform.python_version(), source)
        self._put(self_metrics.INFO, (), info, 1.0)

    def add(self, records: Sequence[Record | Sample]) -> None:
        """Add records up, oldest first. Bad content never raises: the error is counted, and logged once."""
        with self.store.lock:
            for kind, group in groupby(records, type):
                self._adders[kind](list(group))

    def flush(self, until: float, watermarks: Watermarks | None = None) -> None:
        """Record that all steps up to `until`, monotonic seconds, were added: the engines' time is counted up to then.

        `watermarks` returns, for one engine, the time up to which no step can be missing, and the seconds by which its
        serving processes may differ in when they hear of a step. Without it: `until`, and 0.
        """
        behind: set[str] = set()
        with self.store.lock:
            for engine in self._engines.values():
                self._spend(engine, until)
                watermark, skew = watermarks(engine.scope) if watermarks else (until, 0.0)
                self.store[ABANDONED].number(engine.scope).add(engine.abandoned.take_new(min(watermark, until), skew))
                if watermark < until - WINDOW_SECONDS:
                    behind.add(engine.scope[0])
            if self._imbalance.is_due(until):
                self._compare(until, behind)

    def _spend(self, engine: Engine, until: float) -> None:
        """Count an engine's time up to `until`, monotonic seconds."""
        seconds_by_limiter = engine.take_seconds(until)
        for state, seconds in seconds_by_limiter.items():
            self.store[LIMITED].number(engine.scope, (state,)).add(seconds)
        self._costs.spend(engine, seconds_by_limiter)

    def _end(self, engine: Engine) -> None:
        """Count the rest of an engine that will send no more steps."""
        engine.close()
        self._spend(engine, engine.watermark)
        self._settle(engine)
        self._drop_gauges(engine)

    def _compare(self, until: float, behind: Collection[str]) -> None:
        """Update the imbalance of each model, except the models with an engine that is behind."""
        current = [key for key in self._engines if key[0] not in behind]
        for model, compared, ratio in self._imbalance.update(until, loads(self.store, current)):
            if ratio is None:
                self.store[IMBALANCE].cells.pop((model, compared), None)
            else:
                self._put(IMBALANCE, (model,), (compared,), ratio)

    def lose(self, engines: Iterable[EngineKey] | None, clock: float) -> None:
        """Record that steps of some engines, or of all, may be missing for good up to `clock`, monotonic seconds."""
        with self.store.lock:
            for key in self._engines if engines is None else engines:
                if engine := self._engines.get(_safe_key(key)):
                    engine.abandoned.mark_lost(clock)

    def meet(self, key: EngineKey) -> None:
        """Record that one more process serves an engine, in which it may have requests already."""
        with self.store.lock:
            if engine := self._engines.get(_safe_key(key)):
                engine.abandoned.add_server()

    def error(self, stage: str, message: str, *args: object, key: str = "") -> None:
        """Count an error and log it with its traceback, once for each key."""
        log_once(logging.ERROR, message, *args, key=key or message, traceback=True)
        self.count_error(stage)

    def count_error(self, stage: str) -> None:
        """Count an error that is logged elsewhere."""
        with self.store.lock:
            self._add_health([Health(errors={stage: 1}, process=self.process)])

    def export(self, exporter: str, duration: float | None, refused: int = 0) -> None:
        """Count one export, or a failed one if it has no duration; `refused`: points that the receiver left out."""
        with self.store.lock:
            if refused > 0:
                self.store[self_metrics.POINTS_REFUSED].number((), (exporter,)).add(refused)
            if duration is None:
                self.store[self_metrics.EXPORTS_FAILED].number((), (exporter,)).add(1)
                return
            self.store[self_metrics.EXPORTS].number((), (exporter,)).add(1)
            bounds = self._bounds[self_metrics.EXPORT_DURATION.buckets]
            self.store[self_metrics.EXPORT_DURATION].histogram((), (exporter,), bounds).observe(duration)

    def refresh(self) -> None:
        """Update the values that depend on the time of reading. Exporters call this before they read."""
        if self._before_read is not None:
            self._before_read()
        for engine in list(self._engines.values()):
            with self.store.lock:
                self._settle(engine)
                self._forecast(engine)
            checkpoint()
        self.store.settle()
        now, clock = time.time(), time.monotonic()
        with self.store.lock:
            for engine in self._engines.values():
                self._put(self_metrics.STEP_AGE, engine.scope, (), max(clock - engine.clock, 0.0))
                self._expire(engine, clock)
            self._gpus.expire(clock, self._settings.stale_after)
            for (metric, reason), count in list(self.store.rejects.items()):
                cell = self.store[self_metrics.REJECTED].number((), (metric, reason))
                cell.set(count, now)
            self._put(self_metrics.SERIES, (), (), float(sum(len(family.cells) for family in self.store)))

    def _forecast(self, engine: Engine) -> None:
        """Update the headroom and GPU utilization of an engine; unknown values have no series."""
        if engine.has_scheduler_stats and not engine.stale:
            values = {**engine.headroom(), **engine.utilization(self._settings.perf)}
            for metric, value in values.items():
                if value is None:
                    self.store[metric].drop(engine.scope)
                else:
                    self._put(metric, engine.scope, (), value)

    def _expire(self, engine: Engine, clock: float) -> None:
        """Remove the gauges of an engine that stopped reporting in the middle of work, or never reported its state."""
        after = self._settings.stale_after
        unknown = engine.holds_requests or (engine.has_steps and not engine.has_scheduler_stats)
        if engine.stale or not after or not unknown or clock - engine.clock < after:
            return
        engine.stale = True
        self._drop_gauges(engine)

    def _drop_gauges(self, engine: Engine) -> None:
        for metric in self._metrics:
            if isinstance(metric, Gauge) and metric.expires:
                self.store[metric].drop(engine.scope)

    def _add_steps(self, steps: Sequence[Step]) -> None:
        by_engine: dict[EngineKey, list[Step]] = {}
        for step in steps:
            by_engine.setdefault((step.model, step.engine), []).append(step)
            if step.clamped:
                self._refuse(step.clamped)
            checkpoint()
        for name, own in by_engine.items():
            engine = self._engine(*name)
            timely, late = split_late(own, engine.latest_step)
            if late:  # a process was cut off for a while: its counts are added, gauges keep newer values
                for step in late:
                    engine.add_late_step(step)
                counting = [writer for writer in engine.writers[Step] if not isinstance(writer, GaugeWriter)]
                self._write(counting, late, late[-1].time)
            for step in timely:
                engine.add_step(step)
                checkpoint()
            if timely:
                self._write(engine.writers[Step], timely, timely[-1].time)
            if len(engine.finished) >= MAX_UNSETTLED_REQUESTS:
                self._settle(engine)

    def _refuse(self, names: Iterable[str]) -> None:
        """Count one impossible value for each of these metrics. Another release may have other metrics."""
        known = {metric.name for metric in self._metrics}
        self.store.rejects.update((name, "absurd") for name in names if name in known)

    def _settle(self, engine: Engine) -> None:
        """Add up the finished requests that wait."""
        requests, engine.finished = engine.finished, []
        if requests:
            columns = Requests(requests)
            with np.errstate(invalid="ignore", over="ignore"):  # impossible values become non-finite and are rejected
                self._write(engine.writers[Finished], [columns], requests[-1].time)
                saved = engine.add_finished(columns)
                self.store[SAVED_PREFILL].number(engine.scope).add(saved)
                self._costs.save(engine, saved)

    def _add_facts(self, records: Sequence[Facts]) -> None:
        for facts in records:
            if "pooling" in facts.features and len(self._pooling) < MAX_SCOPES:
                self._pooling.add(label(facts.model))
            bounds = self._plan(facts)
            engine = self._engine(facts.model, facts.engine, bounds)
            engine.set_facts(facts)
            self._costs.prepare(engine)
            for metric in self._metrics:
                if metric.scope is not Scope.PROCESS and (not metric.needs or metric.needs in facts.features):
                    prepare(self.store[metric], self._scope(metric, *engine.scope), bounds, facts)
            self._write(engine.writers[Facts], [facts], time.time())
            self._put(UP, engine.scope, (), 1.0)
            if facts.kv_cache_tokens:
                self.store[KV_FREE].put(engine.scope, (), facts.kv_cache_tokens, 0.0)  # with a time before any step

    def _plan(self, facts: Facts) -> dict[str, tuple[float, ...]]:
        """Return the bucket bounds of an engine, without its own ones if they are invalid."""
        try:
            return plan(facts.max_model_len, facts.buckets, self._settings.buckets)
        except ValueError as error:
            message = "Invalid bucket bounds of engine %.100r of %.100r; its histograms have the default bounds: %.300s"
            log_once(logging.ERROR, message, facts.engine, facts.model, error, key="buckets")
            self.count_error("collect")
            return plan(facts.max_model_len, self._settings.buckets)

    def _add_sleeps(self, records: Sequence[Sleep]) -> None:
        for sleep in records:
            engine = self._engine(sleep.model, sleep.engine)
            engine.set_sleep(sleep)
            self._write(engine.writers[Sleep], [sleep], time.time())

    def _add_rejections(self, records: Sequence[Rejection]) -> None:
        for rejection in records:
            model = label(rejection.model)
            if model not in self._models and len(self._models) >= MAX_SCOPES:
                model = OTHER  # something invents models
            writers_of_model = self._models.get(model)
            if writers_of_model is None:
                writers_of_model = self._models[model] = self._make_writers(model, "", self._bounds, Scope.MODEL)[
                    Rejection
                ]
            self._write(writers_of_model, [rejection], time.time())

    def _add_gone(self, records: Sequence[Gone]) -> None:
        for gone in records:
            engine = self._engines.pop(_safe_key((gone.model, gone.engine)), None)
            if engine is not None:
                self._end(engine)
                self.store[self_metrics.STEP_AGE].drop(engine.scope)
                self._put(UP, engine.scope, (), 0.0)

    def _add_process(self, health: Health) -> None:
        """Create the series of a new process, so that its first error is an increase."""
        if health.process not in self._processes and len(self._processes) < MAX_SCOPES:
            self._processes.add(health.process)
            for metric in self._in_scope(Scope.PROCESS):
                if metric.record is Health:
                    prepare(self.store[metric], (), self._bounds, health)

    def _add_health(self, records: Sequence[Health]) -> None:
        for health in records:
            self._add_process(health)
        self._write(self._process, records, time.time())
        if any(health.dropped or "hook" in health.errors for health in records):
            self.lose(None, time.monotonic())

    def _add_samples(self, samples: Sequence[Sample]) -> None:
        self._gpus.begin(samples)
        self._costs.sample(self._engines, samples)
        self._write(self._gpus.writers, samples, samples[-1].time)

    def _write(self, writers: Iterable[Writer], records: Sequence[Any], now: float) -> None:
        for each in writers:
            try:
                each.take(records, now)
            except Exception:  # noqa: BLE001 - one bad metric or record must not cost the others
                self._write_one_by_one(each, records, now)
            checkpoint()

    def _write_one_by_one(self, each: Writer, records: Sequence[Any], now: float) -> None:
        for record in records:
            try:
                each.take([record], now)
            except Exception:  # noqa: BLE001 - see above
                name = each.family.metric.name
                self.error("collect", "Could not add to %s", name, key=f"add {name}")

    def _engine(self, model: str, name: str, bounds: Mapping[str, tuple[float, ...]] | None = None) -> Engine:
        model, name = _safe_key((model, name))
        engine = self._engines.get((model, name))
        if engine is None and len(self._engines) >= MAX_SCOPES:
            model = name = OTHER  # something invents engines
            engine = self._engines.get((model, name))
        if engine is None or bounds is not None:
            if engine is not None:
                self._end(engine)
            made = self._make_writers(model, name, bounds or self._bounds, Scope.ENGINE, Scope.CONVENTION)
            engine = Engine(model, name, made, time.monotonic())
            self._engines[model, name] = engine
        return engine

    def _make_writers(
        self, model: str, engine: str, bounds: Mapping[str, tuple[float, ...]], *scopes: Scope
    ) -> WritersByRecord:
        exemplars = EXEMPLAR_LENGTH if self._settings.exemplars else 0
        made: WritersByRecord = {kind: [] for kind in (Step, Facts, Finished, Sleep, Rejection, Health, Sample)}
        for metric in self._in_scope(*scopes):
            scope = self._scope(metric, model, engine)
            if metric.record is not None:
                made[metric.record] += writers(self.store[metric], scope, bounds, exemplars=exemplars)
        if Scope.ENGINE in scopes:
            made[Step].append(ConnectorWriter(self.store, (model, engine), bounds))
        if self._slo_evaluator and Scope.ENGINE in scopes:
            made[Finished].append(SloWriter(self.store, (model, engine), self._slo_evaluator))
        return made

    def _in_scope(self, *scopes: Scope) -> Iterable[Metric[Any]]:
        return (metric for metric in self._metrics if metric.scope in scopes)

    def _scope(self, metric: Metric[Any], model: str, engine: str) -> tuple[str, ...]:
        settings = self._settings.gen_ai
        pools = model in self._pooling and "operation_name" not in settings.model_fields_set
        operation = EMBEDDINGS if pools else settings.operation_name
        return scope_key(metric.scope, model, engine, (operation, settings.provider_name))

    def _put(self, metric: Metric[Any], scope: tuple[str, ...], own: tuple[str, ...], value: float) -> None:
        self.store[metric].put(scope, own, value, time.time())


def _safe_key(key: EngineKey) -> EngineKey:
    return label(key[0]), label(key[1])
