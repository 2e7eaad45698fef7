"""The aggregator: takes records in, keeps the store that every exporter reads."""

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
from vllm_vitals.aggregation.gpu_writers import Intake
from vllm_vitals.aggregation.kv_writers import ConnectorWriter
from vllm_vitals.aggregation.slo_writers import SloWriter, declare
from vllm_vitals.catalog import CATALOG, self_metrics
from vllm_vitals.catalog.buckets import plan
from vllm_vitals.catalog.cache import KV_FREE, SAVED_PREFILL
from vllm_vitals.catalog.engine import IMBALANCE, LIMITED, UP
from vllm_vitals.catalog.metric import Gauge, Metric, Scope
from vllm_vitals.catalog.requests import ABANDONED
from vllm_vitals.config.settings import Settings
from vllm_vitals.engine.imbalance import WINDOW, Imbalance, loads
from vllm_vitals.engine.state import Engine, Rules, in_order
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
Certain = Callable[[EngineKey], tuple[float, float]]

EMBEDDINGS = "embeddings"
"""gen_ai.operation.name of models that pool, unless it is set."""

WAITING = 128
"""Finished requests of an engine that are kept to be added up together; a read adds them up in any case."""


class Aggregator:
    """Adds records up by the catalogue. Any thread may call it, except vLLM's event loop."""

    def __init__(
        self,
        settings: Settings,
        metrics: Sequence[Metric[Any]] = CATALOG,
        *,
        process: str = "0",
        source: str = "plugin",
    ) -> None:
        """`process`: what the errors of this process are counted under. `source`: where its numbers come from."""
        self.process = process
        self.upstream: Callable[[], None] | None = None
        """Brings in what waits to be added; called before anybody reads."""
        self._settings = settings
        self._metrics = [
            metric for metric in metrics if settings.gen_ai.enabled or metric.scope is not Scope.CONVENTION
        ]
        self._engines: dict[EngineKey, Engine] = {}
        self._models: dict[str, list[Writer]] = {}
        self._pooling: set[str] = set()
        """Models that pool: what is asked of them is an embedding, or made of one."""
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
        of_process = self._rules("", "", self._bounds, Scope.PROCESS)
        self._process, self._gpus = of_process[Health], Intake(of_process[Sample])
        self._processes: set[str] = set()
        """Serving processes that were heard of, this one included."""
        self._hear(Health(process=process))
        for metric in self._in_scope(Scope.PROCESS):
            if metric.record is not Health:
                prepare(self.store[metric], (), self._bounds, settings)
        info = (vllm_vitals.__version__, platform.python_version(), source)
        self._put(self_metrics.INFO, (), info, 1.0)

    def add(self, records: Sequence[Record | Sample]) -> None:
        """Add records up, oldest first. Never raises for what they hold: an error is counted and logged once."""
        with self.store.lock:
            for kind, group in groupby(records, type):
                self._adders[kind](list(group))

    def flush(self, until: float, certain: Certain | None = None) -> None:
        """Take note that all has been told up to `until`, monotonic seconds: time itself is counted so far.

        `certain` tells of an engine up to when nothing is missing at all, and by how many seconds those that serve it
        may differ in when they hear of a step. Without it: up to `until`, and nobody differs.
        """
        behind: set[str] = set()
        with self.store.lock:
            for engine in self._engines.values():
                self._spend(engine, until)
                told, skew = certain(engine.scope) if certain else (until, 0.0)
                self.store[ABANDONED].number(engine.scope).add(engine.abandoned.new(min(told, until), skew))
                if told < until - WINDOW:
                    behind.add(engine.scope[0])
            if self._imbalance.due(until):
                self._compare(until, behind)

    def _spend(self, engine: Engine, until: float) -> None:
        """Count an engine's time up to `until`, monotonic seconds."""
        spent = engine.spend(until)
        for state, seconds in spent.items():
            self.store[LIMITED].number(engine.scope, (state,)).add(seconds)
        self._costs.spend(engine, spent)

    def _end(self, engine: Engine) -> None:
        """Count what is left to count of an engine of which no step will come any more."""
        engine.end()
        self._spend(engine, engine.told)
        self._settle(engine)
        self._drop_gauges(engine)

    def _compare(self, until: float, behind: Collection[str]) -> None:
        """Show how evenly the engines of a model share its work, unless one of them has not been heard of for long."""
        told = [key for key in self._engines if key[0] not in behind]
        for model, compared, ratio in self._imbalance.look(until, loads(self.store, told)):
            if ratio is None:
                self.store[IMBALANCE].cells.pop((model, compared), None)
            else:
                self._put(IMBALANCE, (model,), (compared,), ratio)

    def lose(self, engines: Iterable[EngineKey] | None, clock: float) -> None:
        """Take note that steps of some engines, or of any, may be missing up to `clock`, monotonic seconds, for good."""
        with self.store.lock:
            for key in self._engines if engines is None else engines:
                if engine := self._engines.get(_fitting(key)):
                    engine.abandoned.lose(clock)

    def meet(self, key: EngineKey) -> None:
        """Take note that one more process tells of an engine, in which it may have requests already."""
        with self.store.lock:
            if engine := self._engines.get(_fitting(key)):
                engine.abandoned.meet()

    def error(self, stage: str, message: str, *args: object, key: str = "") -> None:
        """Count an error and log it with its traceback, once for each key."""
        log_once(logging.ERROR, message, *args, key=key or message, traceback=True)
        self.count_error(stage)

    def count_error(self, stage: str) -> None:
        """Count an error that is logged elsewhere."""
        with self.store.lock:
            self._add_health([Health(errors={stage: 1}, process=self.process)])

    def export(self, exporter: str, duration: float | None, refused: int = 0) -> None:
        """Count one export and its seconds, or a failed one when there is no duration; `refused` of its points."""
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
        """Bring what depends on the time of reading up to date; exporters call it before they read."""
        if self.upstream is not None:
            self.upstream()
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
        """Show how much more an engine can take, and what it makes of its GPUs, as far as that can be told."""
        if engine.scheduled and not engine.stale:
            shown = {**engine.headroom(), **engine.utilization(self._settings.perf)}
            for metric, value in shown.items():
                if value is None:
                    self.store[metric].drop(engine.scope)
                else:
                    self._put(metric, engine.scope, (), value)

    def _expire(self, engine: Engine, clock: float) -> None:
        """Take the gauges of an engine away that fell silent in the middle of work, or never said how it does."""
        after = self._settings.stale_after
        unknown = engine.holds_requests or (engine.served and not engine.scheduled)
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
            timely, late = in_order(own, engine.latest)
            if late:  # a process was cut off for a while: what it counted counts, but it sets nothing back
                for step in late:
                    engine.late(step)
                counting = [writer for writer in engine.rules[Step] if not isinstance(writer, GaugeWriter)]
                self._write(counting, late, late[-1].time)
            for step in timely:
                engine.complete(step)
                checkpoint()
            if timely:
                self._write(engine.rules[Step], timely, timely[-1].time)
            if len(engine.finished) >= WAITING:
                self._settle(engine)

    def _refuse(self, names: Iterable[str]) -> None:
        """Count a value that cannot be true of each of these metrics; another release may have others."""
        known = {metric.name for metric in self._metrics}
        self.store.rejects.update((name, "absurd") for name in names if name in known)

    def _settle(self, engine: Engine) -> None:
        """Add the finished requests up that wait to be."""
        requests, engine.finished = engine.finished, []
        if requests:
            columns = Requests(requests)
            with np.errstate(invalid="ignore", over="ignore"):  # what comes of nonsense is refused as not finite
                self._write(engine.rules[Finished], [columns], requests[-1].time)
                saved = engine.ended(columns)
                self.store[SAVED_PREFILL].number(engine.scope).add(saved)
                self._costs.save(engine, saved)

    def _add_facts(self, records: Sequence[Facts]) -> None:
        for facts in records:
            if "pooling" in facts.features and len(self._pooling) < MAX_SCOPES:
                self._pooling.add(label(facts.model))
            bounds = self._plan(facts)
            engine = self._engine(facts.model, facts.engine, bounds)
            engine.learn(facts)
            self._costs.prepare(engine)
            for metric in self._metrics:
                if metric.scope is not Scope.PROCESS and (not metric.needs or metric.needs in facts.features):
                    prepare(self.store[metric], self._scope(metric, *engine.scope), bounds, facts)
            self._write(engine.rules[Facts], [facts], time.time())
            self._put(UP, engine.scope, (), 1.0)
            if facts.kv_cache_tokens:
                self.store[KV_FREE].put(engine.scope, (), facts.kv_cache_tokens, 0.0)  # older than any step

    def _plan(self, facts: Facts) -> dict[str, tuple[float, ...]]:
        """Return the bounds of an engine's buckets, without those that it tells if they are none."""
        try:
            return plan(facts.max_model_len, facts.buckets, self._settings.buckets)
        except ValueError as error:
            message = "Engine %.100r of %.100r has buckets that cannot be used, so it has the usual ones: %.300s"
            log_once(logging.ERROR, message, facts.engine, facts.model, error, key="buckets")
            self.count_error("collect")
            return plan(facts.max_model_len, self._settings.buckets)

    def _add_sleeps(self, records: Sequence[Sleep]) -> None:
        for sleep in records:
            engine = self._engine(sleep.model, sleep.engine)
            engine.sleep(sleep)
            self._write(engine.rules[Sleep], [sleep], time.time())

    def _add_rejections(self, records: Sequence[Rejection]) -> None:
        for rejection in records:
            model = label(rejection.model)
            if model not in self._models and len(self._models) >= MAX_SCOPES:
                model = OTHER  # something makes models up
            rules = self._models.get(model)
            if rules is None:
                rules = self._models[model] = self._rules(model, "", self._bounds, Scope.MODEL)[Rejection]
            self._write(rules, [rejection], time.time())

    def _add_gone(self, records: Sequence[Gone]) -> None:
        for gone in records:
            engine = self._engines.pop(_fitting((gone.model, gone.engine)), None)
            if engine is not None:
                self._end(engine)
                self.store[self_metrics.STEP_AGE].drop(engine.scope)
                self._put(UP, engine.scope, (), 0.0)

    def _hear(self, health: Health) -> None:
        """Make the series of a process when it is first heard of, so that its first error is an increase."""
        if health.process not in self._processes and len(self._processes) < MAX_SCOPES:
            self._processes.add(health.process)
            for metric in self._in_scope(Scope.PROCESS):
                if metric.record is Health:
                    prepare(self.store[metric], (), self._bounds, health)

    def _add_health(self, records: Sequence[Health]) -> None:
        for health in records:
            self._hear(health)
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
            except Exception:  # noqa: BLE001 - one metric, or one record, must not cost the others
                self._write_apart(each, records, now)
            checkpoint()

    def _write_apart(self, each: Writer, records: Sequence[Any], now: float) -> None:
        for record in records:
            try:
                each.take([record], now)
            except Exception:  # noqa: BLE001 - see above
                name = each.family.metric.name
                self.error("collect", "Could not add to %s", name, key=f"add {name}")

    def _engine(self, model: str, name: str, bounds: Mapping[str, tuple[float, ...]] | None = None) -> Engine:
        model, name = _fitting((model, name))
        engine = self._engines.get((model, name))
        if engine is None and len(self._engines) >= MAX_SCOPES:
            model = name = OTHER  # something makes engines up
            engine = self._engines.get((model, name))
        if engine is None or bounds is not None:
            if engine is not None:
                self._end(engine)
            rules = self._rules(model, name, bounds or self._bounds, Scope.ENGINE, Scope.CONVENTION)
            engine = Engine(model, name, rules, time.monotonic())
            self._engines[model, name] = engine
        return engine

    def _rules(self, model: str, engine: str, bounds: Mapping[str, tuple[float, ...]], *scopes: Scope) -> Rules:
        exemplars = EXEMPLAR_LENGTH if self._settings.exemplars else 0
        rules: Rules = {kind: [] for kind in (Step, Facts, Finished, Sleep, Rejection, Health, Sample)}
        for metric in self._in_scope(*scopes):
            scope = self._scope(metric, model, engine)
            if metric.record is not None:
                rules[metric.record] += writers(self.store[metric], scope, bounds, exemplars=exemplars)
        if Scope.ENGINE in scopes:
            rules[Step].append(ConnectorWriter(self.store, (model, engine), bounds))
        if self._slo_evaluator and Scope.ENGINE in scopes:
            rules[Finished].append(SloWriter(self.store, (model, engine), self._slo_evaluator))
        return rules

    def _in_scope(self, *scopes: Scope) -> Iterable[Metric[Any]]:
        return (metric for metric in self._metrics if metric.scope in scopes)

    def _scope(self, metric: Metric[Any], model: str, engine: str) -> tuple[str, ...]:
        settings = self._settings.gen_ai
        pools = model in self._pooling and "operation_name" not in settings.model_fields_set
        operation = EMBEDDINGS if pools else settings.operation_name
        return scope_key(metric.scope, model, engine, (operation, settings.provider_name))

    def _put(self, metric: Metric[Any], scope: tuple[str, ...], own: tuple[str, ...], value: float) -> None:
        self.store[metric].put(scope, own, value, time.time())


def _fitting(key: EngineKey) -> EngineKey:
    return label(key[0]), label(key[1])
