"""The PrometheusRule is what the product makes of the same configuration, whatever is set, and Prometheus takes it."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from helm.generate.rules import sections, settings
from tests.helm.render import ATTACH, merged, objects, the
from tests.live.bootstrap import prometheus_tools
from vllm_vitals.mixin.rules import as_data, build
from vllm_vitals.mixin.rules.config import Alert, RulesConfig
from vllm_vitals.mixin.rules.windows import duration


def rendered(**rule: Any) -> list[Any]:
    found = objects(merged(ATTACH, {"prometheusRule": rule}))
    return list(the(found, "PrometheusRule")["spec"]["groups"])


def wanted(**config: Any) -> list[Any]:
    made = RulesConfig.model_validate(config)
    return [group for groups in build(made).values() for group in as_data(groups, made)["groups"]]


def squeezed(groups: list[Any]) -> list[Any]:
    """Return groups with each text on one line: how a long expression is broken says nothing."""

    def squeeze(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: squeeze(each) for name, each in value.items()}
        if isinstance(value, list):
            return [squeeze(each) for each in value]
        if not isinstance(value, str):
            return value
        # A quotient has its last digit rounded here and there.
        return re.sub(r"\d+\.\d{10,}", lambda found: f"{float(found[0]):.9g}", re.sub(r"\s+", "", value))

    return [squeeze(group) for group in groups]


def nested(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    for name in reversed(path):
        value = {name: value}
    return dict(value)


def test_defaults() -> None:
    assert squeezed(rendered()) == squeezed(wanted())
    assert len(wanted()) >= 7


def test_exponential_histograms() -> None:
    assert squeezed(rendered(histograms="exponential")) == squeezed(wanted(histograms="exponential"))
    assert squeezed(rendered(histograms="exponential")) != squeezed(rendered())


def other(place: int, default: Any, shown: Any) -> Any:
    """Return a value that is no other setting's, and not the default."""
    if isinstance(shown, str):
        return default + 60 * (7 + place)
    return 0.2 + place / 100 if 0 < default < 1 else default + 7 + place


def written(value: Any, shown: Any) -> Any:
    """Return a value as one writes it: a length of time as text."""
    return duration(value) if isinstance(shown, str) else value


def test_every_threshold_reaches_its_rules() -> None:
    """All at once, each with a value of its own, so that none can stand in another's place."""
    chart: dict[str, Any] = {}
    product: dict[str, Any] = {}
    for place, (path, default, shown) in enumerate(settings()):
        value = other(place, default, shown)
        product = merged(product, nested(path, value))
        chart = merged(chart, nested(path, written(value, shown)))
    assert len(list(settings())) > 40
    assert squeezed(rendered(defaultRules=chart)) == squeezed(wanted(**product))


@pytest.mark.parametrize(
    ("path", "value"),
    [("engine.stalled.after", "90s"), ("capacity.kv_full_soon.above", 0.5), ("slo.floor", 1_000_000), ("latency.window", "30m"),
     ("capacity.prefix_cache_collapse.baseline", "2d"), ("telemetry.export_failing.above", 0.1), ("telemetry.step_age.window", "1h")],
)  # fmt: skip
def test_one_threshold_leaves_the_rest_alone(path: str, value: Any) -> None:
    change = nested(tuple(path.split(".")), value)
    made = squeezed(rendered(defaultRules=change))
    assert made == squeezed(wanted(**change)) != squeezed(wanted())


ALERTS = [(section, name) for section, group in sections() for name, each in group if isinstance(each, Alert)]
WITH_ALERTS = sorted({section for section, _ in ALERTS})


@pytest.mark.parametrize("section", [section for section, _ in sections()])
def test_a_group_that_is_off_is_absent(section: str) -> None:
    change = {section: {"enabled": False}}
    made = squeezed(rendered(defaultRules=change))
    assert made == squeezed(wanted(**change))
    assert len(made) < len(wanted())


@pytest.mark.parametrize("odd", [False, True])
def test_an_alert_that_is_off_is_absent(odd: bool) -> None:  # noqa: FBT001
    change: dict[str, Any] = {}
    for path in ALERTS[odd::2]:
        change = merged(change, nested((*path, "enabled"), False))
    assert squeezed(rendered(defaultRules=change)) == squeezed(wanted(**change)) != squeezed(wanted())


@pytest.mark.parametrize(
    ("switch", "value"), [("severity", "info"), ("severity", "critical"), ("for", "7m"), ("for", "0s")]
)
def test_what_every_alert_has(switch: str, value: str) -> None:
    change: dict[str, Any] = {}
    for path in ALERTS:
        change = merged(change, nested((*path, switch), value))
    assert squeezed(rendered(defaultRules=change)) == squeezed(wanted(**change)) != squeezed(wanted())


def test_a_group_has_the_last_word_on_severity() -> None:
    change: dict[str, Any] = {section: {"severity": "info"} for section in WITH_ALERTS}
    change["engine"]["stalled"] = {"severity": "critical"}
    made = rendered(defaultRules=change)
    assert squeezed(made) == squeezed(wanted(**change))
    assert {rule["labels"]["severity"] for group in made for rule in group["rules"] if "alert" in rule} == {"info"}


def test_labels_runbooks_and_groups_of_your_own() -> None:
    own = {"name": "own", "rules": [{"record": "a:b", "expr": "vector(1)"}]}
    made = rendered(alertLabels={"team": "inference"}, runbooks="https://wiki/", extraGroups=[own])
    assert squeezed(made[:-1]) == squeezed(wanted(alert_labels={"team": "inference"}, runbooks="https://wiki/"))
    assert made[-1] == own
    alerts = [rule for group in made[:-1] for rule in group["rules"] if "alert" in rule]
    assert {rule["labels"]["team"] for rule in alerts} == {"inference"}
    assert len(alerts) > 20


def test_metadata() -> None:
    values = {"namespace": "monitoring", "additionalLabels": {"release": "kps"}}
    rule = the(objects(merged(ATTACH, {"prometheusRule": values})), "PrometheusRule")
    assert rule["metadata"]["namespace"] == "monitoring"
    assert rule["metadata"]["labels"]["release"] == "kps"


def test_prometheus_takes_them(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": rendered(histograms="explicit")}))
    _, promtool = prometheus_tools()
    done = subprocess.run([promtool, "check", "rules", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"SUCCESS: \d{2,} rules found", done.stdout)
