"""The page of a preview: what it shows, where, and that nothing a server says is more than text in it."""

import math
import re
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from PIL import Image

from tests.boards.expressions import FILES, ROOT, load, panels
from tests.boards.previews import TIMES, board_of, numbers, of, panel_of, preview, read
from vllm_vitals.preview import graphs
from vllm_vitals.preview.answers import Answer, pixels
from vllm_vitals.preview.board import Preview
from vllm_vitals.preview.fields import Look, Shown
from vllm_vitals.preview.markup import Markup, joined, tag
from vllm_vitals.preview.page import page
from vllm_vitals.preview.prometheus import Series
from vllm_vitals.preview.window import Window

PATHS = [*FILES["vitals"], *FILES["native"]]
KINDS = ("stat", "timeseries", "table", "heatmap", "state-timeline")
EVIL = "\"><script>alert(1)</script><img src=x onerror=alert(2)>$x^2$</style>'&amp;"
GRID = np.array(TIMES, dtype=float)


def everywhere(board: dict[str, Any], name: str) -> Preview:
    """Return a preview in which every query has two series whose labels all have a value."""
    labels = dict.fromkeys(
        ("slo", "instance", "engine", "finish_reason", "model_name", "cluster", "alertname", "version"), name
    )
    answers = {}
    for panel in panels(board):
        for target in panel["targets"]:
            rows = [
                of({**labels, "le": le}, *values) for le, values in (("1", (1, 2, 0, 1, 1)), ("+Inf", (1, 3, 4, 1, 0)))
            ]
            answers[panel["id"], target["refId"]] = Answer(tuple(rows if panel["type"] == "heatmap" else rows[:1]))
    return Preview(board, answers, preview(board).window)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_panel_of_every_board_is_drawn_in_its_place(path: Any) -> None:
    board = load(path)
    made = everywhere(board, "x")
    text = page([made])
    loads_nothing(text)
    found = read(text)
    shown = {each.attributes["id"]: each for each in found.all("section")}
    assert len(shown) == len(found.all("section")) == len(panels(board))
    for row in made.sections():
        for panel in row.panels:
            element = shown[f"{board['uid']}-{panel['id']}"]
            top, left, bottom, right = map(int, element.attributes["style"].removeprefix("--area:").split("/"))
            place = panel["gridPos"]
            assert (left - 1, right - left, bottom - top) == (place["x"], place["w"], place["h"])
            assert top - 1 == place["y"] - min(each["gridPos"]["y"] for each in row.panels)
            assert panel["title"] in element.text
            assert panel["description"] in element.text
            assert not element.all("p", class_="none"), panel["title"]
    closed = {row["title"] for row in board["panels"] if row["type"] == "row" and row["collapsed"]}
    rows = found.all("details", class_="row")
    assert {row.all("summary")[0].text for row in rows if "open" not in row.attributes} == closed


def loads_nothing(text: str) -> None:
    """See that a page needs nothing from elsewhere, and that no id is there twice."""
    found = read(text)
    ids = [each.attributes["id"] for each in found.all() if "id" in each.attributes]
    assert len(ids) == len(set(ids))
    assert not found.all("script") + found.all("link") + found.all("iframe")
    for each in found.all():
        for name in ("src", "href"):
            assert each.attributes.get(name, "#").startswith(("#", "data:image/png;base64,")), each.attributes
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)
    used = set(re.findall(r"url\(#([^)]+)\)", text)) | {each.attributes["href"][1:] for each in found.all("use")}
    assert used <= set(ids)


def test_a_page_of_several_boards_loads_nothing_and_no_id_is_there_twice(effort: str) -> None:
    paths = FILES["native"] if effort == "all" else FILES["native"][:2]
    loads_nothing(page([everywhere(load(path), "x") for path in paths]))


def test_what_a_server_says_is_text() -> None:
    made = everywhere(board_of(*KINDS), EVIL)
    errors = preview(board_of(*KINDS), *[EVIL] * len(KINDS))
    plain = {each.name for each in read(page([everywhere(board_of(*KINDS), "x"), errors])).all()}
    found = read(page([made, errors], f"model={EVIL}"))
    shown, wrong = found.all("main")
    assert {each.name for each in found.all()} == plain
    assert not any(name.startswith("on") for each in found.all() for name in each.attributes)
    assert EVIL in found.all("p", class_="meta")[0].text
    for number in (1, 2):
        assert EVIL in panel_of(shown, made, number).text
    assert EVIL[:20] in panel_of(shown, made, 4).all("svg")[0].text
    assert all(panel_of(wrong, errors, number).all("div", role="alert")[0].text == EVIL for number in range(len(KINDS)))


def test_a_dollar_begins_no_formula() -> None:
    made = preview(board_of("state-timeline"), [of({"instance": "$a_1$", "engine": "0"}, 1, 1)])
    (svg, *_) = panel_of(read(page([made])), made).all("svg")
    assert "$a_1$ engine 0" in svg.text


def test_markup_escapes_what_is_not_markup() -> None:
    made = tag("p", "<b>", Markup("<i>"), class_='"', data_x=1, hidden=True, open=False, title=None)
    assert made == '<p class="&quot;" data-x="1" hidden>&lt;b&gt;<i></p>'
    assert joined("&", Markup("&")) == "&amp;&"


def test_large_numbers_are_the_latest_of_their_series() -> None:
    made = preview(board_of("stat"), [of({"slo": "chat"}, 0.5, 0.25), of({"slo": "batch"}, 0.75, math.nan)])
    panel = panel_of(read(page([made])), made)
    assert numbers(panel) == [0.25, 0.75]
    assert [each.text for each in panel.all("span")] == ["chat", "batch"]
    assert [each.text for each in panel.all("b")] == ["25.00%", "75.00%"]


def test_nothing_is_said_in_the_panels_words() -> None:
    for answer in [], [of({"slo": "chat"}, math.nan, math.nan)]:
        made = preview(board_of(*KINDS), *[answer] * len(KINDS))
        found = read(page([made]))
        for number, panel in enumerate(panels(dict(made.board))):
            (words,) = panel_of(found, made, number).all("p", class_="none")
            assert words.text == panel["fieldConfig"]["defaults"]["noValue"]


def test_what_cannot_be_drawn_is_said() -> None:
    board = board_of("stat")
    board["panels"][1]["type"] = "piechart"
    assert "'piechart' is not drawn here" in page([preview(board, [of({}, 1)])]).replace("&#x27;", "'")
    made = preview(board_of("heatmap"))
    answers = dict.fromkeys(made.answers, Answer(not_drawn="native histograms are not drawn here"))
    found = Preview(made.board, answers, made.window)
    assert "native histograms are not drawn here" in panel_of(read(page([found])), found).text
    assert found.errors() == []


def test_errors_are_shown_and_named() -> None:
    made = preview(board_of("stat", "table"), "many-to-many matching not allowed", [of({"instance": "x"}, 1)])
    found = read(page([made]))
    assert panel_of(found, made).all("div", role="alert")[0].text == "many-to-many matching not allowed"
    assert not panel_of(found, made, 1).all("div", role="alert")
    assert made.errors() == ["vLLM / Fleet: SLO attainment [A]: many-to-many matching not allowed"]


def test_a_table_has_a_row_for_each_set_of_labels_in_the_order_that_it_says() -> None:
    board = board_of("table")
    panel = next(
        each for path in FILES["vitals"] for each in panels(load(path)) if each["title"] == "Worst engines first"
    )
    panel["gridPos"], panel["id"] = board["panels"][1]["gridPos"], 2
    board["panels"][1] = panel
    one, two = ({"instance": name, "model_name": "m", "engine": "0", "cluster": "c"} for name in ("one", "two"))
    made = preview(board, [of(one, 0.2), of(two, 0.9)])
    answers = {**made.answers, (2, "B"): Answer((of(two, 7),)), (2, "E"): Answer((of(one, 0.5), of(two, math.nan)))}
    found = panel_of(read(page([Preview(board, answers, made.window)])), made)
    head, *rows = [[cell.text for cell in row.inside] for row in found.all("tr")]
    assert head == ["cluster", "instance", "model_name", "engine", "saturation", "waiting", "TTFT p99"]
    assert rows == [["c", "two", "m", "0", "90%", "7", ""], ["c", "one", "m", "0", "20%", "", "500 ms"]]
    bars = [each.attributes["style"].split(";")[0] for each in found.all("td", class_="number gauge")]
    assert bars == ["--part:90.0%", "--part:20.0%"]


def drawn(draw: Any) -> Any:
    """Return the axes that something was drawn on."""
    axes = Figure().add_subplot()
    draw(axes)
    return axes


def shown(name: str, values: Series, **options: Any) -> Shown:
    return Shown(name, values, Look({"unit": "s", "color": {"mode": "fixed", "fixedColor": "#112233"}, **options}))


def test_lines_are_drawn_through_the_values_and_not_through_gaps() -> None:
    holes = Series({}, [(TIMES[0], 1), (TIMES[1], 2), (TIMES[3], math.inf), (TIMES[4], 4)])
    axes = drawn(graphs.lines([shown("a", holes)], GRID))
    line, lonely = axes.lines
    assert line.get_xdata().tolist() == TIMES
    assert np.array_equal(line.get_ydata(), [1, 2, math.nan, math.nan, 4], equal_nan=True)
    assert lonely.get_ydata().tolist() == [4]
    assert axes.get_ylim() == (0, pytest.approx(4.2))


def test_series_that_are_stacked_stand_on_each_other() -> None:
    stacked = {"custom.stacking": {"mode": "normal"}}
    apart = {"custom.stacking": {"mode": "none"}, "custom.lineStyle": {"fill": "dash"}}
    some = [
        shown("a", of({}, 1, 2, 3, 4, 5), **stacked),
        shown("b", of({}, 10, 20, first=3), **stacked),
        shown("limit", of({}, 9, 9, 9, 9, 9), **apart),
    ]
    lines = [line.get_ydata().tolist() for line in drawn(graphs.lines(some, GRID)).lines[::2]]
    assert lines[0] == [1, 2, 3, 4, 5]
    assert lines[1][3:] == [14, 25]
    assert all(map(math.isnan, lines[1][:3]))
    assert lines[2] == [9] * 5
    assert drawn(graphs.lines(some, GRID)).lines[4].is_dashed()


def test_a_series_may_have_an_axis_of_its_own() -> None:
    some = [shown("a", of({}, 1, 1)), shown("b", of({}, 500, 500), unit="short", **{"custom.axisPlacement": "right"})]
    left, right = drawn(graphs.lines(some, GRID)).figure.axes
    assert [axes.lines[0].get_ydata()[0] for axes in (left, right)] == [1, 500]
    assert [text.get_text() for text in right.get_yticklabels()] == ["0", "200", "400"]


def test_ticks_are_round_in_the_unit_they_are_written_in() -> None:
    axes = drawn(graphs.lines([shown("a", of({}, 0, 400))], GRID))
    assert [text.get_text() for text in axes.get_yticklabels()] == ["0 s", "2 mins", "4 mins", "6 mins"]


def test_a_heatmap_has_what_was_in_each_bucket_alone() -> None:
    """Prometheus' buckets hold those below them too: 2, 1 and 1 in the last quarter."""
    some = [shown("", of({"le": le}, *values)) for le, values in [
        ("+Inf", (0, 0, 0, 0, 4)), ("0.5", (0, 0, 0, 0, 3)), ("0.1", (0, 0, 0, 1, 2)), ("0.05", (0, 0, 0, 0, 0)), ("100", (0, 0, 0, 0, 4)),
    ]]  # fmt: skip
    found = graphs.spread(some, GRID)
    assert found.bounds == [0.1, 0.5, 100]
    assert found.cells.filled(0).tolist() == [[0, 0, 0, 1, 2], [0, 0, 0, 0, 1], [0, 0, 0, 0, 1]]
    assert found.most == 2
    axes = drawn(graphs.heat(found, GRID, "s", "cividis"))
    assert [text.get_text() for text in axes.get_yticklabels()] == ["100 ms", "500 ms", "1.67 mins"]


def test_a_state_lasts_until_it_changes() -> None:
    words = {"1": {"text": "there", "color": "#009e73"}, "0": {"text": "gone", "color": "#d55e00"}}
    points = Series({}, [(TIMES[0], 1), (TIMES[1], 1), (TIMES[2], 0), (TIMES[4], 1)])
    axes = drawn(graphs.states([shown("a" * 40, points, mappings=[{"type": "value", "options": words}])], GRID))
    bars = [(bar.get_x(), bar.get_width(), to_hex(bar.get_facecolor())) for bar in axes.patches]
    assert bars == [(TIMES[0], 30, "#009e73"), (TIMES[2], 15, "#d55e00"), (TIMES[4], 15, "#009e73")]
    assert axes.get_yticklabels()[0].get_text() == "a" * 25 + "…"


def test_a_time_shorter_than_a_scrape_is_drawn() -> None:
    made = everywhere(board_of(*KINDS), "x")
    found = read(page([Preview(made.board, made.answers, Window(TIMES[-1], 1, 15))]))
    assert len(found.all("svg")) >= 3


def test_a_panel_that_is_too_wide_for_a_phone_has_a_graph_for_it() -> None:
    board = board_of("timeseries", "timeseries")
    board["panels"][2]["gridPos"]["w"] = 12
    made = preview(board, *[[of({"finish_reason": "stop"}, 1, 2, 3)]] * 2)
    found = read(page([made]))
    third, half = (panel_of(found, made, number).all("svg") for number in (0, 1))
    widths = [float(svg.attributes["viewbox"].split()[2]) for svg in (*third, *half)]
    assert widths == [pixels(board["panels"][1]) - 22, pixels(board["panels"][2]) - 22, widths[0]]


def test_the_readme_has_its_pictures() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    names = re.findall(r"!\[[^]]{20,}\]\((docs/pictures/\w+\.png)\)", readme)
    assert len(names) == 3
    assert sorted(ROOT / name for name in names) == sorted((ROOT / "docs" / "pictures").iterdir())
    for name in names:
        assert (ROOT / name).stat().st_size < 300_000
        with Image.open(ROOT / name) as picture:
            assert (picture.format, picture.width) == ("PNG", 1280)
