"""What can be set of the rules, with every default: thresholds, windows, severities, labels."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator

from vllm_vitals.config.types import Section, Share
from vllm_vitals.mixin.rules.windows import Interval, Wait, Window
from vllm_vitals.records.gpu import REASONS

Severity = Literal["critical", "warning", "info"]
LabelName = Annotated[str, Field(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*$")]
Count = Annotated[float, Field(ge=0)]
Factor = Annotated[float, Field(gt=0)]


class Labels(Section):
    """The labels that a scrape or a receiver adds to each series; any of them may be absent."""

    service: list[LabelName] = Field(
        ["cluster", "namespace", "job"], description="Tell one service from another; replicas of a service share them."
    )
    replica: list[LabelName] = Field(
        ["pod", "instance"], description="Tell replicas of a service apart, whose engines all have engine=0."
    )
    shared: list[LabelName] = Field(
        ["cluster", "namespace", "pod"],
        description="Have the same value on vLLM's own metrics and on these, though the ports differ.",
    )

    @field_validator("service", "replica", "shared")
    @classmethod
    def _ours_to_add(cls, names: list[str]) -> list[str]:
        if own := sorted({"model_name", "engine", "slo"} & set(names)):
            raise ValueError(f"{', '.join(own)} is on the series itself and need not be listed")
        if len(set(names)) < len(names):
            raise ValueError("each label may be listed once")
        return names


class Alert(Section):
    """What every alert has."""

    model_config = ConfigDict(populate_by_name=True)

    enabled: bool = Field(True, description="Whether there is the alert.")
    severity: Severity = Field("warning", description="Its label `severity`.")
    for_: Wait = Field(0, alias="for", description="How long the condition must hold before the alert fires.")


class Over(Alert):
    """An alert on what some time showed."""

    window: Window = Field(300, description="The time that is looked at.")


class Above(Over):
    """An alert on a level that is too high."""

    above: Share = Field(0.9, description="The level above which it is too high.")


class After(Alert):
    """An alert on something that has not come for too long."""

    after: Window = Field(120, description="How long nothing may come.")


class Events(Over):
    """An alert on events that should not be."""

    floor: Count = Field(0, description="More than so many of them.")


class Part(Events):
    """An alert on a part of all events that is too large."""

    above: Share = Field(0.01, description="The part above which it is too large.")


class Ratio(Events):
    """An alert on events that are too many for others."""

    above: Factor = Field(0.2, description="How many for each of the others are too many.")


class Gone(Alert):
    """An alert on an engine that was there."""

    known_for: Window = Field(6 * 3600, description="How long an engine that is gone is remembered.")


class KvFull(Alert):
    """An alert on a KV cache that fills."""

    within: Window = Field(300, description="When it will be full.")
    above: Share = Field(0.7, description="The share in use below which that is of no concern.")


class Imbalance(Over):
    """An alert on engines that share the work unevenly."""

    factor: Factor = Field(1.5, description="An engine's requests by the mean of all its model's engines.")
    floor: Count = Field(8, description="Requests of that engine below which it is of no concern.")


class Collapse(Over):
    """An alert on a hit ratio far below what is usual."""

    baseline: Window = Field(86400, description="The time that tells what is usual.")
    factor: Share = Field(0.5, description="The part of the usual hit ratio below which it has collapsed.")
    least: Share = Field(0.2, description="The usual hit ratio below which there is nothing to collapse.")
    floor: Count = Field(100_000, description="Tokens that must have been looked up in `window`.")


class Throttled(Above):
    """An alert on clocks that are kept down."""

    reasons: list[str] = Field(
        [
            "sw_thermal_slowdown",
            "hw_thermal_slowdown",
            "hw_power_brake_slowdown",
            "prochot",
            "socket_thermal",
            "vr_thermal",
            "hbm_thermal",
        ],
        description="Those that are no normal operation; a power cap under load is.",
    )

    @field_validator("reasons")
    @classmethod
    def _known(cls, reasons: list[str]) -> list[str]:
        if unknown := [reason for reason in reasons if reason not in REASONS]:
            raise ValueError(f"{', '.join(unknown)} is none of: {', '.join(REASONS)}")
        return reasons


class Burn(Section):
    """One pair of windows in which an error budget is used up too fast."""

    model_config = ConfigDict(populate_by_name=True)

    long: Window = Field(description="In it the budget is used up too fast.")
    short: Window = Field(description="In it too, so that the alert ends soon after the trouble.")
    factor: Factor = Field(description="How many times as fast as the target allows.")
    for_: Wait = Field(0, alias="for", description="How long that must hold before the alert fires.")
    severity: Severity = Field("warning", description="Its label `severity`.")

    @model_validator(mode="after")
    def _in_order(self) -> "Burn":
        if self.short >= self.long:
            raise ValueError("short must be shorter than long")
        return self


class Group(Section):
    """Rules that are switched together."""

    enabled: bool = Field(True, description="Whether there are these rules.")
    severity: Severity | None = Field(None, description="Replaces the severity of all alerts of the group.")

    @model_validator(mode="before")
    @classmethod
    def _keep_defaults(cls, given: Any) -> Any:
        """Let what is said of an alert change that only, and leave its other defaults."""
        if not isinstance(given, dict):
            return given
        defaults = {name: field.default for name, field in cls.model_fields.items()}
        return {
            name: defaults[name].model_dump(by_alias=True) | value
            if isinstance(value, dict) and isinstance(defaults.get(name), Alert)
            else value
            for name, value in given.items()
        }


class Slo(Group):
    """Objectives: error ratios, and budgets that are used up too fast."""

    burns: list[Burn] = Field(
        [
            Burn(long=3600, short=300, factor=14.4, for_=120, severity="critical"),
            Burn(long=6 * 3600, short=1800, factor=6, for_=900, severity="critical"),
            Burn(long=86400, short=7200, factor=3, for_=3600, severity="warning"),
            Burn(long=3 * 86400, short=6 * 3600, factor=1, for_=3 * 3600, severity="warning"),
        ],
        min_length=1,
        description="Pairs of windows, as in chapter 5 of Google's Site Reliability Workbook.",
    )
    floor: Count = Field(10, description="Bad requests that the long window must exceed.")
    ceiling: Share = Field(
        0.9, description="A share of bad requests that is too many whatever the target: 14.4 times what 90% allows is more than all."
    )  # fmt: skip
    long_interval: Interval = Field(180, description="How often windows of a day and more are evaluated; 4m at most.")
    not_judged: Part = Part(for_=900, window=3600, above=0.05, floor=10)


class Engine(Group):
    """Engines: work that does not go on, requests that fail."""

    stalled: After = After(severity="critical", for_=60, after=120)
    no_progress: Over = Over(severity="critical", for_=300, window=300)
    gone: Gone = Gone(severity="critical", for_=300)
    asleep: Alert = Alert(severity="info", for_=3600)
    asleep_under_load: Above = Above(for_=300, window=300, above=0.9)
    errors: Part = Part(severity="critical", for_=120, window=600, above=0.01, floor=5)
    corrupted: Events = Events(severity="critical", window=600)


class Capacity(Group):
    """Load: saturation, queues, the KV cache, how evenly engines share it."""

    queue_growing: Events = Events(for_=300, window=600, floor=10)
    saturated: Above = Above(for_=900, window=900, above=0.95)
    kv_full_soon: KvFull = KvFull(for_=120)
    preemption_storm: Ratio = Ratio(for_=300, window=600, above=0.2, floor=10)
    rank_imbalance: Imbalance = Imbalance(for_=900, window=900)
    rejections: Part = Part(for_=300, window=600, above=0.01, floor=10)
    prefix_cache_collapse: Collapse = Collapse(for_=900, window=1800)


class Latency(Group):
    """Latencies: quantiles."""

    quantiles: list[Share] = Field([0.5, 0.9, 0.95, 0.99], min_length=1, description="Which.")
    window: Window = Field(300, description="Over which they are taken.")


class Efficiency(Group):
    """Energy and money by token, GPU time without work."""

    windows: list[Window] = Field([300, 3600], min_length=1, description="Over which they are taken.")


class Gpu(Group):
    """GPUs: what slows them down, breaks them, or leaves them without work."""

    throttled: Throttled = Throttled(for_=600, window=600, above=0.1)
    memory_errors: Events = Events(severity="critical", window=3600)
    degraded: Alert = Alert(for_=900)
    lost: Alert = Alert(severity="critical", for_=60)
    idle: Above = Above(severity="info", window=6 * 3600, above=0.95)


class Telemetry(Group):
    """These metrics themselves: whether they can be trusted."""

    dropped: Events = Events(window=600, floor=10)
    errors: Events = Events(window=900, floor=5)
    export_failing: Part = Part(for_=300, window=600, above=0.5, floor=3)
    points_refused: Events = Events(for_=300, window=600)
    step_age: Over = Over(for_=120, window=300)
    detached: Alert = Alert(for_=60)
    missing: Alert = Alert(for_=900)


class RulesConfig(Section):
    """Everything that can be set of the rules."""

    labels: Labels = Labels()
    alert_labels: dict[LabelName, str] = Field(
        default_factory=dict, description="More labels for every alert, such as the team that it is for."
    )
    runbooks: str = Field(
        "docs/runbooks/", min_length=1, description="What `runbook_url` begins with: where you serve docs/runbooks, with the slash at the end."
    )  # fmt: skip
    runbook_suffix: str = Field(".md", description="What `runbook_url` ends with.")
    histograms: Literal["explicit", "exponential"] = Field(
        "explicit", description="How latencies reach Prometheus: `exponential` where `otlp.histograms` is."
    )
    interval: Interval | None = Field(
        None, description="How often rules are evaluated, 4m at most; unset, as Prometheus has it."
    )
    slo: Slo = Slo()
    engine: Engine = Engine()
    capacity: Capacity = Capacity()
    latency: Latency = Latency()
    efficiency: Efficiency = Efficiency()
    gpu: Gpu = Gpu()
    telemetry: Telemetry = Telemetry()
