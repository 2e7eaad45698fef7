"""Where panels are: rows of a grid of 24 columns, filled from the left without a hole."""

from collections.abc import Iterable, Iterator, Sequence

from grafana_foundation_sdk.models.dashboard import GridPos, Panel, RowPanel

COLUMNS = 24


def placed(rows: Iterable[tuple[str, bool, Sequence[Panel]]]) -> list[Panel | RowPanel]:
    """Return the panels of titled rows with an id and a place for each; a row that is closed holds its panels itself."""
    found: list[Panel | RowPanel] = []
    top, identity = 0, 1
    for title, closed, panels in rows:
        row = RowPanel(title=title, collapsed=closed, id_val=identity, grid_pos=GridPos(h=1, w=COLUMNS, x=0, y=top))
        identity += 1
        found.append(row)
        bottom = top + 1
        for line in _lines(panels):
            bottom = _place(line, bottom)
        for panel in panels:
            panel.id_val = identity
            identity += 1
        if closed:
            row.panels = list(panels)
            top += 1
        else:
            found += panels
            top = bottom
    return found


def _lines(panels: Sequence[Panel]) -> Iterator[list[Panel]]:
    line: list[Panel] = []
    for panel in panels:
        if line and sum(map(_width, line)) + _width(panel) > COLUMNS:
            yield line
            line = []
        line.append(panel)
    if line:
        yield line


def _place(line: Sequence[Panel], top: int) -> int:
    """Put panels beside each other, as high as the highest and together as wide as the grid; return what is below."""
    spare = COLUMNS - sum(map(_width, line))
    height = max(panel.grid_pos.h for panel in line if panel.grid_pos)
    left = 0
    for index, panel in enumerate(line):
        width = _width(panel) + spare // len(line) + (index < spare % len(line))
        panel.grid_pos = GridPos(h=height, w=width, x=left, y=top)
        left += width
    return top + height


def _width(panel: Panel) -> int:
    if panel.grid_pos is None:
        raise ValueError(f"the panel {panel.title!r} has no size")
    return panel.grid_pos.w
