"""Every query of every dashboard and rule, against real stores that have seen real vLLMs on which everything happened.

A Prometheus that scraped them, and a VictoriaMetrics to which they pushed over OTLP through a collector.
"""

import json
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple
from urllib.error import HTTPError
from urllib.parse import quote

import pytest
import yaml
from typer.testing import CliRunner

from tests.boards.expressions import FILES, Expression, expressions, load, panels, substituted
from tests.boards.previews import numbers, read
from tests.live.prometheus import Prometheus
from tests.live.provoke import RULES, Stores, Watched
from tests.live.server import fetch
from tests.live.shown import SPAN, Shown
from tests.live.shown import STEP as SCRAPES
from tests.live.victoria import VictoriaMetrics
from tests.unit.nvml import stub
from vllm_vitals.catalog import CATALOG
from vllm_vitals.cli import app

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
}
"""What is expected to be empty, by what a query asks for, and why."""
OUTER = {"job", "instance", "cluster", "namespace", "pod", "host_name"}
WITHOUT_GPUS = r"hw_|vllm_gpu_|vllm_engine_energy|vllm_perf_\w*(limit|utilization|mfu)"


class Answer(NamedTuple):
    """What a store answered to a query over time."""

    expression: Expression
    series: int
    error: str = ""


class Store:
    """What answers queries over the time of a run."""

    def __init__(self, behind: Prometheus | VictoriaMetrics, begun: float) -> None:
        """`begun`: when the run did, Unix seconds."""
        self._behind = behind
        self._begun = begun
        self._where = f"http://127.0.0.1:{behind.port}/api/v1"
        self._until = time.time()
        self._known: dict[str, list[set[str]]] = {}

    def values(self, text: str) -> list[set[str]]:
        """Return the values of each series of a query's answer; raise HTTPError if it is refused."""
        if text not in self._known:
            self._known[text] = self._values(text)
        return self._known[text]

    def _values(self, text: str) -> list[set[str]]:
        asked = substituted(text, interval="10s", span="5m")
        if isinstance(self._behind, VictoriaMetrics):
            asked = self._behind.spelled(asked)
        span = f"start={self._begun:.0f}&end={self._until:.0f}&step={STEP}"
        found = json.loads(fetch(f"{self._where}/query_range?{span}&query={quote(asked)}"))["data"]["result"]
        return [{value[1] for value in series["values"]} for series in found]

    def series(self) -> Counter[frozenset[tuple[str, str]]]:
        """Count the series of ours by the labels that come neither with a scrape nor from who pushes."""
        match = quote('{__name__=~"(vllm|vitals|hw|gen_ai)_.+"}')
        found = json.loads(fetch(f"{self._where}/series?match[]={match}&start={self._begun:.0f}"))["data"]
        return Counter(
            frozenset((name, str(float(value)) if name == "le" else value) for name, value in each.items() if name not in OUTER)
            for each in found if each["__name__"] in SAMPLES
        )  # fmt: skip

    def ask(self, asked: Iterable[Expression]) -> list[Answer]:
        """Return the answer to each query; any list of queries will do."""
        answers = []
        for each in asked:
            try:
                found = self.values(each.text)
            except HTTPError as error:
                answers.append(Answer(each, 0, error.read().decode()[:300]))
            else:
                answers.append(Answer(each, sum(bool(values - {"NaN"}) for values in found)))
        return answers


@pytest.fixture(scope="module")
def begun(stored: Watched) -> float:
    return stored.begun


@pytest.fixture(scope="module")
def stores(stored: Watched) -> Stores:
    stored.provoke()
    return stored.stores


@pytest.fixture(scope="module", params=Stores._fields)
def store(request: pytest.FixtureRequest, stores: Stores, begun: float) -> Store:
    return Store(getattr(stores, request.param), begun)


@pytest.mark.parametrize("source", FILES)
def test_every_query_of_the_dashboards_is_answered(store: Store, source: str) -> None:
    answers = store.ask(each for path in FILES[source] for each in expressions(load(path)))
    assert [answer for answer in answers if answer.error] == []
    expected = "|".join([*EMPTY, *([] if stub.COMPILER else [WITHOUT_GPUS])])
    empty = [answer.expression for answer in answers if not answer.series]
    assert [f"{each.board}: {each.place}" for each in empty if not re.search(expected, each.text)] == []


def test_what_is_expected_to_be_empty_is(store: Store) -> None:
    """Else the list would grow old, and hide what breaks."""
    every = [each for paths in FILES.values() for path in paths for each in expressions(load(path))]
    full = [answer.expression.text for answer in store.ask(every) if answer.series]
    texts = [each.text for each in every]
    for pattern, why in EMPTY.items():
        asking = [text for text in texts if re.search(pattern, text)]
        assert asking, f"no query asks for {pattern} ({why})"
        assert len(asking) > sum(bool(re.search(pattern, text)) for text in full), (
            f"{pattern} is not empty: not true that {why}"
        )


def test_no_query_yields_what_is_no_number(store: Store) -> None:
    """NaN and infinity are what a division without a guard shows when there is no traffic."""
    bad = []
    for path in FILES["vitals"] + FILES["native"]:
        for each in expressions(load(path)):
            values = set().union(*store.values(each.text))
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


def test_every_recording_rule_records_something(store: Store) -> None:
    answers = store.ask(each for kind, each in rules() if kind == "record")
    assert len(answers) > 20
    assert [answer for answer in answers if answer.error] == []
    expected = "|".join([*EMPTY, *([] if stub.COMPILER else [WITHOUT_GPUS])])
    assert [each.place for each, series, _ in answers if not series and not re.search(expected, each.text)] == []


def test_every_alert_is_evaluated_on_series_that_there_are(store: Store) -> None:
    """An alert itself yields nothing as long as all is well; what it looks at must be there."""
    alerts = [each for kind, each in rules() if kind == "alert"]
    assert [answer for answer in store.ask(alerts) if answer.error] == []
    looked_at = [Expression(each.board, each.place, text) for each in alerts for text in selectors(each.text)]
    assert len(looked_at) > len(alerts)
    expected = "|".join([*EMPTY, *([] if stub.COMPILER else [WITHOUT_GPUS])])
    missing = [answer.expression for answer in store.ask(looked_at) if not answer.series]
    assert [(each.place, each.text) for each in missing if not re.search(expected, each.text)] == []


def test_both_ways_bring_the_same_series(stores: Stores, begun: float) -> None:
    """Names, units, labels and buckets are the same whoever translates them, and servers stay apart."""
    scraped, pushed = (Store(each, begun).series() for each in stores)
    assert len(scraped) > 1000
    assert (scraped - pushed, pushed - scraped) == (Counter(), Counter())


@pytest.mark.parametrize("port", ["scraped.port", "pushed.alerts"])
def test_nothing_is_wrong_with_any_rule(stores: Stores, port: str) -> None:
    where = attrgetter(port)(stores)
    groups = json.loads(fetch(f"http://127.0.0.1:{where}/api/v1/rules"))["data"]["groups"]
    found = {rule["name"]: rule for group in groups for rule in group["rules"]}
    assert found.keys() >= {each.place for _, each in rules()}
    assert {name: rule.get("lastError") for name, rule in found.items() if rule["health"] != "ok"} == {}


@pytest.mark.parametrize("source", FILES)
def test_previews_show_what_the_prometheus_says(stores: Stores, tmp_path: Path, source: str) -> None:
    until = int(time.time()) - 3  # what was scraped until then is there
    when = datetime.fromtimestamp(until, timezone.utc).isoformat()
    ran = CliRunner().invoke(app, [
        "dashboards", "preview", "--prometheus", f"http://127.0.0.1:{stores.scraped.port}", "--out", str(tmp_path / "all"),
        "--source", source, "--range", f"{SPAN}s", "--scrape-interval", f"{SCRAPES}s", "--until", when,
    ])  # fmt: skip
    assert ran.exit_code == 0, ran.output
    wanted, filled = Shown(stores.scraped.port, until), 0
    for path in FILES[source]:
        board, page = load(path), read((tmp_path / "all" / f"{path.stem}.html").read_text(encoding="utf-8"))
        assert [each.text for each in page.all("div", role="alert")] == []
        for panel in panels(board):
            (shown,) = page.all("section", id=f"{board['uid']}-{panel['id']}")
            place = f"{board['title']}: {panel['title']}"
            # A Prometheus adds series up in no fixed order, so that two answers may differ in the last digit.
            assert sorted(numbers(shown)) == pytest.approx(wanted.numbers(panel), rel=1e-9), place
            filled += bool(numbers(shown))
    assert filled > len(FILES[source]) * 4
