"""`vllm-vitals dashboards`: Grafana's dashboards as files, and previews of them."""

import json
import sys
from pathlib import Path

import typer

from vllm_vitals.cli.preview_options import FAILED, WRONG, PreviewOptions
from vllm_vitals.mixin.promql import Histograms, Source


def write(out: Path | None, source: Source, datasource: str, uid_prefix: str, histograms: Histograms) -> int:
    """Write a file for each board and print its path; return the exit code."""
    try:
        from vllm_vitals.mixin.dashboards import Options, build  # noqa: PLC0415
    except ImportError as error:
        return _missing(error, "dashboards", "dashboards", "grafana-foundation-sdk")
    try:
        boards = build(Options(source, datasource, uid_prefix, histograms))
    except ValueError as error:
        typer.echo(f"vllm-vitals dashboards: {error}", err=True)
        return FAILED
    directory = out or Path("dashboards", *(["native"] * (source == "native")))
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, board in boards.items():
            path = directory / f"{name}.json"
            path.write_text(text(board), encoding="utf-8")
            typer.echo(path)
    except OSError as error:
        typer.echo(f"vllm-vitals dashboards: cannot write to {directory}: {error}", err=True)
        return WRONG
    return 0


def preview(options: PreviewOptions) -> int:
    """Write a preview and print its path; return the exit code."""
    try:
        from vllm_vitals.cli.preview import show  # noqa: PLC0415
    except ImportError as error:
        return _missing(error, "dashboards preview", "preview", "grafana-foundation-sdk and matplotlib")
    return show(options)


def text(board: dict[str, object]) -> str:
    """Return a board as the text of its file."""
    return json.dumps(board, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _missing(error: ImportError, command: str, extra: str, needed: str) -> int:
    version = ".".join(map(str, sys.version_info[:2]))
    typer.echo(
        f"vllm-vitals {command}: {error}. It needs {needed}, on Python 3.11 or newer (this is {version}): "
        f"pip install 'vllm-vitals[{extra}]'",
        err=True,
    )
    return FAILED
