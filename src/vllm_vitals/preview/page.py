"""One HTML page that needs nothing beside it: boards as Grafana would lay them out."""

from collections.abc import Sequence
from datetime import datetime, timezone
from importlib.resources import files

from vllm_vitals.preview.answers import Panel
from vllm_vitals.preview.board import Preview, Section
from vllm_vitals.preview.content import content
from vllm_vitals.preview.markup import Markup, tag

HEAD = Markup(
    '<meta charset="utf-8">'
    # Should anything of a server get past the escaping, it would still not run, nor load anything.
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">"
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
    '<meta name="color-scheme" content="light dark">'
)


def page(previews: Sequence[Preview], chosen: str = "") -> str:
    """Return the page of some boards; `chosen` says which part of the fleet they show."""
    style = Markup(files(__package__).joinpath("page.css").read_text(encoding="utf-8"))
    title = ", ".join(each.board["title"] for each in previews)
    links = [tag("a", each.board["title"], href=f"#{each.board['uid']}") for each in previews]
    menu = [tag("nav", *links)] if len(links) > 1 else []
    head = tag("head", HEAD, tag("title", title), tag("style", style))
    body = tag("body", *menu, *(_board(each, chosen) for each in previews))
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _board(preview: Preview, chosen: str) -> Markup:
    board, window = preview.board, preview.window
    header = tag(
        "header",
        tag("h1", board["title"]),
        tag("p", board["description"]),
        tag(
            "p",
            _time(window.end - window.span),
            " to ",
            _time(window.end),
            " UTC",
            chosen and f" · {chosen}",
            class_="meta",
        ),
    )
    rows = (_section(section, preview) for section in preview.sections())
    return tag("main", header, *rows, id=board["uid"])


def _section(section: Section, preview: Preview) -> Markup:
    inside = tag("div", *(_panel(panel, preview, section.top) for panel in section.panels), class_="grid")
    return tag("details", tag("summary", section.title), inside, open=not section.closed, class_="row")


def _panel(panel: Panel, preview: Preview, top: int) -> Markup:
    place, why = panel["gridPos"], panel["description"]
    row, column = place["y"] - top + 1, place["x"] + 1
    header = tag(
        "header",
        tag("h2", panel["title"], title=why),
        tag("details", tag("summary", "i", aria_label="What this shows"), tag("p", why), class_="why"),
    )
    return tag(
        "section", header, content(panel, preview), class_=f"panel {panel['type']}", id=f"{preview.board['uid']}-{panel['id']}",
        style=f"--area:{row}/{column}/{row + place['h']}/{column + place['w']}",
    )  # fmt: skip


def _time(moment: float) -> Markup:
    when = datetime.fromtimestamp(moment, timezone.utc)
    return tag("time", f"{when:%Y-%m-%d %H:%M:%S}", datetime=when.isoformat())
