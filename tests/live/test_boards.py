"""Every query of every dashboard and rule, against a real Prometheus that scraped real vLLMs on which everything happened."""

import json
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.error import HTTPError
from urllib.parse import quote

import pytest
import yaml

from tests.boards.expressions import FILES, Expression, expressions, load, substituted
from tests.live.provoke import RULES, watched
from tests.live.server import fetch
from tests.live.test_prometheus import Prometheus
from tests.unit.nvml import stub
from vllm_vitals.catalog import CATALOG

STEP = 2
SAMPLES = {
    f"{metric.prometheus}{end}"
    for metric in CATALOG
    for end in (("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",))
}
EMPTY = {
    r"vllm_kv_transfer_|vllm_kv_offload_": "no KV connector that tells anything runs on a CPU",
    r"vllm_engine_requests_kv_fetch|vllm:num_requests_kv_fetch": "nor one that loads asynchronously",
    r"vllm_cuda_graph_tokens": "there are no CUDA graphs on a CPU",
    r"vllm_requests_watermarked|vllm:watermark_requests": "the model does not watermark",
    r"(vllm_|vllm:)m(ultimodal|m)_cache": "the model takes text only",
    r"vitals_connectors_unknown": "there is no connector",
    r"resets\(": "no engine is restarted",
    r"offset 10m": "no configuration is changed",
    r"vitals_values_rejected": "no value was untrue",
    r"vitals_exports_failed": "no export failed",
    r"vitals_exports_refused": "nothing is pushed",
}
"""What is expected to be empty, by what a query asks for, and why."""
WITHOUT_GPUS = r"hw_|vllm_gpu_|vllm_engine_energy|vllm_perf_\w*(limit|utilization|mfu)"


class Answer(NamedTuple):
    """What a Prometheus answered to a query over time."""

    expression: Expression
    series: int
    error: str = ""


def ask(prometheus: Prometheus, asked: Iterable[Expression], begun: float) -> list[Answer]:
    """Return the answer to each query over the time since `begun`, Unix seconds; any list of queries will do."""
    where = f"http://127.0.0.1:{prometheus.port}/api/v1/query_range?start={begun:.0f}&end={time.time():.0f}&step={STEP}"
    answers = []
    for each in asked:
        text = substituted(each.text, interval="10s", span="5m")
        try:
            found = json.loads(fetch(f"{where}&query={quote(text)}"))["data"]["result"]
        except HTTPError as error:
            answers.append(Answer(each, 0, error.read().decode()[:300]))
        else:
            answers.append(Answer(each, sum(any(value[1] != "NaN" for value in series["values"]) for series in found)))
    return answers


@pytest.fixture(scope="module")
def begun() -> float:
    return time.time()


@pytest.fixture(scope="module")
def prometheus(begun: float, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    assert begun
    with watched(model, tmp_path_factory.mktemp("watched")) as running:
        yield running


@pytest.mark.parametrize("source", FILES)
def test_every_query_of_the_dashboards_is_answered(prometheus: Prometheus, begun: float, source: str) -> None:
    answers = ask(prometheus, [each for path in FILES[source] for each in expressions(load(path))], begun)
    assert [answer for answer in answers if answer.error] == []
    expected = "|".join([*EMPTY, *([] if stub.COMPILER else [WITHOUT_GPUS])])
    empty = [answer.expression for answer in answers if not answer.series]
    assert [f"{each.board}: {each.place}" for each in empty if not re.search(expected, each.text)] == []


def test_what_is_expected_to_be_empty_is(prometheus: Prometheus, begun: float) -> None:
    """Else the list would grow old, and hide what breaks."""
    every = [each for paths in FILES.values() for path in paths for each in expressions(load(path))]
    full = [answer.expression.text for answer in ask(prometheus, every, begun) if answer.series]
    texts = [each.text for each in every]
    for pattern, why in EMPTY.items():
        asking = [text for text in texts if re.search(pattern, text)]
        assert asking, f"no query asks for {pattern} ({why})"
        assert len(asking) > sum(bool(re.search(pattern, text)) for text in full), (
            f"{pattern} is not empty: not true that {why}"
        )


def test_no_query_yields_what_is_no_number(prometheus: Prometheus, begun: float) -> None:
    """NaN and infinity are what a division without a guard shows when there is no traffic."""
    where = f"http://127.0.0.1:{prometheus.port}/api/v1/query_range?start={begun:.0f}&end={time.time():.0f}&step={STEP}"
    bad = []
    for path in FILES["vitals"] + FILES["native"]:
        for each in expressions(load(path)):
            found = json.loads(fetch(f"{where}&query={quote(substituted(each.text, interval='10s', span='5m'))}"))
            values = {value[1] for series in found["data"]["result"] for value in series["values"]}
            bad += [f"{each.board}: {each.place}"] * bool(values & {"NaN", "+Inf", "-Inf"})
    assert bad == []


def rules() -> Iterator[tuple[str, Expression]]:
    """Yield every rule that is checked in, with its kind."""
    for path in sorted(RULES.glob("*.yaml")):
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]:
            for rule in group["rules"]:
                kind = "record" if "record" in rule else "alert"
                yield kind, Expression(group["name"], rule[kind], rule["expr"])


def selectors(text: str) -> set[str]:
    """Return the series of ours that a query selects."""
    known = "|".join(sorted(map(re.escape, SAMPLES), reverse=True))
    return {found[0] for found in re.finditer(rf"\b(?:{known})\b(?:\{{[^}}]*\}})?", text)}


def test_every_recording_rule_records_something(prometheus: Prometheus, begun: float) -> None:
    answers = ask(prometheus, [each for kind, each in rules() if kind == "record"], begun)
    assert len(answers) > 20
    assert [answer for answer in answers if answer.error] == []
    expected = "|".join([*EMPTY, *([] if stub.COMPILER else [WITHOUT_GPUS])])
    assert [each.place for each, series, _ in answers if not series and not re.search(expected, each.text)] == []


def test_every_alert_is_evaluated_on_series_that_there_are(prometheus: Prometheus, begun: float) -> None:
    """An alert itself yields nothing as long as all is well; what it looks at must be there."""
    alerts = [each for kind, each in rules() if kind == "alert"]
    assert [answer for answer in ask(prometheus, alerts, begun) if answer.error] == []
    looked_at = [Expression(each.board, each.place, text) for each in alerts for text in selectors(each.text)]
    assert len(looked_at) > len(alerts)
    expected = "|".join([*EMPTY, *([] if stub.COMPILER else [WITHOUT_GPUS])])
    missing = [answer.expression for answer in ask(prometheus, looked_at, begun) if not answer.series]
    assert [(each.place, each.text) for each in missing if not re.search(expected, each.text)] == []


def test_prometheus_finds_nothing_wrong_with_any_rule(prometheus: Prometheus) -> None:
    groups = json.loads(fetch(f"http://127.0.0.1:{prometheus.port}/api/v1/rules"))["data"]["groups"]
    found = {rule["name"]: rule for group in groups for rule in group["rules"]}
    assert found.keys() >= {each.place for _, each in rules()}
    assert {name: rule.get("lastError") for name, rule in found.items() if rule["health"] != "ok"} == {}
