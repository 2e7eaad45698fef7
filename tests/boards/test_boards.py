"""The dashboards that are checked in: fresh, well formed, and asking for nothing that there is not."""

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.boards import form, language, schemas
from tests.boards.expressions import DASHBOARDS, FILES, Board, expressions, load, panels, substituted
from vllm_vitals.catalog import CATALOG
from vllm_vitals.cli import app
from vllm_vitals.cli.dashboards import text
from vllm_vitals.mixin.dashboards import BOARDS, Options, build

PATHS = [path for paths in FILES.values() for path in paths]
KNOWN = {"vitals": language.ours(), "native": language.vllms()}
WINDOWS = {"$__rate_interval", "$__range", "1h", "6h"}
"""The last two are those of burn rates, which are alerted on."""
NOT_SHOWN: dict[str, str] = {}
"""Metrics of the catalogue that are on no panel, and why."""


def named(path: Path) -> str:
    return str(path.relative_to(DASHBOARDS).with_suffix(""))


def source_of(path: Path) -> str:
    return "native" if path.parent.name == "native" else "vitals"


@pytest.mark.parametrize("source", FILES)
def test_the_files_are_fresh(source: Any) -> None:
    made = {name: text(board) for name, board in build(Options(source)).items()}
    found = {path.stem: path.read_text(encoding="utf-8") for path in FILES[source]}
    assert found.keys() == made.keys()
    stale = [name for name in made if found[name] != made[name]]
    assert not stale, "dashboards are stale; run: make docs"


def test_the_boards_of_our_own_metrics_are_all_there() -> None:
    assert {path.stem for path in FILES["vitals"]} == {board.name for board in BOARDS}


@pytest.mark.parametrize("path", PATHS, ids=named)
def test_the_form_is_right(path: Path) -> None:
    assert form.complaints(load(path)) == []


@pytest.mark.parametrize("path", PATHS, ids=named)
def test_grafanas_own_schema_accepts_it(path: Path) -> None:
    assert schemas.complaints(load(path)) == []


@pytest.mark.parametrize("path", PATHS, ids=named)
def test_every_query_asks_for_what_there_is(path: Path) -> None:
    for each in expressions(load(path)):
        assert language.complaints(substituted(each.text), KNOWN[source_of(path)]) == [], each


@pytest.mark.parametrize("path", PATHS, ids=named)
def test_windows_are_grafanas(path: Path) -> None:
    for each in expressions(load(path)):
        assert set(re.findall(r"\[([^\]:]+)[\]:]", each.text)) <= WINDOWS, each


@pytest.mark.parametrize("path", PATHS, ids=named)
def test_every_query_is_narrowed_by_the_variables(path: Path) -> None:
    """A query that forgets one would show the whole fleet."""
    known = KNOWN[source_of(path)]
    scope = {"cluster", "namespace", "instance", "model_name"} | ({"engine"} if source_of(path) == "vitals" else set())
    for each in expressions(load(path)):
        for name, asked in language.selectors(substituted(each.text)):
            if name not in language.PROMETHEUS and not each.place.startswith("$"):
                assert scope & known[name] <= asked, (each, name)


def test_no_two_boards_share_a_uid() -> None:
    uids = [load(path)["uid"] for path in PATHS]
    assert len(set(uids)) == len(uids)


def test_links_lead_to_boards_of_the_same_kind() -> None:
    for paths in FILES.values():
        boards = [load(path) for path in paths]
        uids = {board["uid"] for board in boards}
        for board in boards:
            led = {link["url"].removeprefix("/d/") for link in board["links"]}
            assert led == uids - {board["uid"]}
            for uid in re.findall(r"/d/([\w-]+)\?", json.dumps(board)):
                assert uid in uids


def test_every_metric_is_on_some_panel() -> None:
    texts = " ".join(each.text for path in FILES["vitals"] for each in expressions(load(path)))
    words = set(re.findall(r"[a-zA-Z_:][\w:]*", texts))
    names = {
        metric: {metric.prometheus, *(f"{metric.prometheus}_{end}" for end in ("bucket", "sum", "count"))}
        for metric in CATALOG
    }
    missing = {metric.name for metric, own in names.items() if not own & words}
    assert missing == set(NOT_SHOWN)


def test_variables_work_without_the_label() -> None:
    for path in PATHS:
        for variable in load(path)["templating"]["list"][1:]:
            assert (variable["allValue"], variable["includeAll"], variable["current"]["value"]) == (
                ".*",
                True,
                "$__all",
            )
        first = load(path)["templating"]["list"][0]
        assert (first["type"], first["name"], first["query"]) == ("datasource", "datasource", "prometheus")


def test_panels_that_need_the_plugin_are_left_out_of_the_native_boards() -> None:
    for path in FILES["native"]:
        ours = {panel["title"] for panel in panels(load(DASHBOARDS / path.name))}
        native = {panel["title"] for panel in panels(load(path))}
        assert native < ours or native == ours
    assert "SLO attainment" not in {panel["title"] for path in FILES["native"] for panel in panels(load(path))}


def test_the_command_takes_a_datasource_a_prefix_and_a_source(tmp_path: Path) -> None:
    arguments = [
        "dashboards",
        "--out",
        str(tmp_path),
        "--datasource",
        "mimir",
        "--uid-prefix",
        "team",
        "--source",
        "native",
    ]
    ran = CliRunner().invoke(app, arguments)
    assert ran.exit_code == 0, ran.output
    assert ran.output.splitlines() == [str(tmp_path / f"{path.stem}.json") for path in _in_order("native")]
    board = load(tmp_path / "fleet.json")
    assert board["uid"] == "team-native-fleet"
    assert board["templating"]["list"][0]["current"]["value"] == "mimir"
    assert all("/d/team-native-" in link["url"] for link in board["links"])


def _in_order(source: str) -> list[Path]:
    order = [board.name for board in BOARDS]
    return sorted(FILES[source], key=lambda path: order.index(path.stem))


def test_a_prefix_that_grafana_would_refuse_is_refused(tmp_path: Path) -> None:
    ran = CliRunner().invoke(app, ["dashboards", "--out", str(tmp_path), "--uid-prefix", "x" * 40])
    assert ran.exit_code == 1
    assert "must be 1 to 40 of" in ran.output
    assert not list(tmp_path.iterdir())


def test_exponential_histograms_are_asked_for_without_buckets() -> None:
    histograms = [metric for metric in CATALOG if metric.kind == "histogram"]
    known = {name: labels for name, labels in KNOWN["vitals"].items() if not name.endswith("_bucket")}
    known |= {metric.prometheus: known[f"{metric.prometheus}_count"] for metric in histograms}
    for metric in histograms:
        del known[f"{metric.prometheus}_sum"], known[f"{metric.prometheus}_count"]
    for board in build(Options(histograms="exponential")).values():
        for each in expressions(board):
            assert language.complaints(substituted(each.text), known) == [], each


def some() -> Board:
    """Return a board to break."""
    return copy.deepcopy(load(DASHBOARDS / "fleet.json"))


def first(board: Board, kind: str = "timeseries") -> Board:
    """Return the first panel of a kind."""
    return next(panel for panel in panels(board) if panel["type"] == kind)


def same_id(board: Board) -> None:
    first(board)["id"] = first(board, "stat")["id"]


def overlap(board: Board) -> None:
    one, other = [panel for panel in panels(board) if panel["type"] == "stat"][:2]
    other["gridPos"] = {**one["gridPos"], "x": one["gridPos"]["x"] + 1}


BROKEN: list[tuple[Any, str]] = [
    (same_id, "is on 2 panels"),
    (overlap, "overlap"),
    (lambda board: first(board)["gridPos"].update(x=20, w=8), "outside the grid"),
    (lambda board: first(board)["fieldConfig"]["defaults"].pop("unit"), "no unit"),
    (lambda board: first(board).update(description="Latency"), "says too little"),
    (lambda board: first(board)["fieldConfig"]["defaults"].pop("noValue"), "what nothing means"),
    (lambda board: first(board)["targets"][0].pop("refId"), "are called"),
    (lambda board: first(board)["options"]["legend"].update(showLegend=False), "no legend"),
    (lambda board: first(board)["targets"][0].update(legendFormat=""), "have no name"),
    (lambda board: first(board)["targets"][0].pop("range"), "neither instant nor a range"),
    (lambda board: first(board)["fieldConfig"]["defaults"]["thresholds"].update(steps=[{"color": "red", "value": 80}]), "default thresholds"),
    (lambda board: first(board)["fieldConfig"]["overrides"].append({"matcher": {"id": "byName", "options": "of {{slo}}"}, "properties": []}), "no series is called"),
    (lambda board: board["links"][0].update(includeVars=False), "does not carry variables"),
    (lambda board: board.update(__inputs=[]), "only an export has"),
    (lambda board: first(board).update(datasource={"type": "prometheus", "uid": "prom"}), "data source that is chosen"),
]  # fmt: skip


@pytest.mark.parametrize(("ruin", "said"), BROKEN)
def test_a_wrong_form_is_noticed(ruin: Any, said: str) -> None:
    board = some()
    ruin(board)
    assert any(said in complaint for complaint in form.complaints(board))


AGAINST_THE_SCHEMA: list[tuple[Any, str]] = [
    (lambda board: board.update(nonsense=1), "nonsense"),
    (lambda board: first(board).update(nonsense=1), "nonsense"),
    (lambda board: first(board)["options"].update(nonsense=1), "nonsense"),
    (lambda board: first(board)["options"].pop("legend"), "legend"),
    (lambda board: first(board)["fieldConfig"]["defaults"]["custom"].update(lineWidth="thick"), "thick"),
    (lambda board: first(board, "stat")["options"].update(graphMode="pie"), "pie"),
    (lambda board: first(board)["fieldConfig"]["overrides"].append(
        {"matcher": {"id": "byName", "options": "x"}, "properties": [{"id": "custom.nonsense", "value": 1}]}), "nonsense"),
    (lambda board: board["templating"]["list"][1].update(auto_min="10s"), "auto_min"),
    (lambda board: board["annotations"]["list"][0].update(nonsense=1), "nonsense"),
]  # fmt: skip


@pytest.mark.parametrize(("ruin", "said"), AGAINST_THE_SCHEMA)
def test_what_grafana_does_not_know_is_noticed(ruin: Any, said: str) -> None:
    board = some()
    ruin(board)
    assert any(said in complaint for complaint in schemas.complaints(board))


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("sum(vllm_engine_requests_runing)", "no metric vllm_engine_requests_runing"),
        ('sum(vllm_engine_requests_running{model="x"})', "has no label model"),
        ("sum by (reason) (vllm_engine_requests_running)", "nothing in it has a label reason"),
        ("vllm_engine_requests_running * on (gpu) vllm_engine_up", "nothing in it has a label gpu"),
        ("rate(vllm_requests_finished_total)", "expected type"),
        ("sum(vllm_engine_requests_running", "parenthesis"),
        ("vllm_request_duration_seconds_bucket", ""),
        ("vllm_request_duration_seconds", "no metric vllm_request_duration_seconds"),
    ],
)
def test_a_wrong_query_is_noticed(query: str, said: str) -> None:
    found = language.complaints(query, KNOWN["vitals"])
    assert any(said in complaint for complaint in found) if said else not found


def test_a_query_of_ours_is_none_of_vllms() -> None:
    assert language.complaints("vllm_engine_requests_running", KNOWN["native"])
    assert not language.complaints("vllm:num_requests_running", KNOWN["native"])
