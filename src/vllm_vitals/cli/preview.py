"""`vllm-vitals dashboards preview`: dashboards drawn from a live Prometheus. It needs the extra `preview`."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import typer

from vllm_vitals._util.redact import shown_url
from vllm_vitals.cli.preview_options import FAILED, WRONG, PreviewOptions
from vllm_vitals.mixin.dashboards import Options, build
from vllm_vitals.preview import photo
from vllm_vitals.preview.answers import asked as answers
from vllm_vitals.preview.board import Preview
from vllm_vitals.preview.page import page
from vllm_vitals.preview.prometheus import Prometheus, PrometheusError
from vllm_vitals.preview.variables import chosen
from vllm_vitals.preview.window import Window, moment, seconds

Boards = dict[str, dict[str, Any]]


def show(asked: PreviewOptions) -> int:
    """Write a preview, print its path and the queries that failed; return the exit code."""
    try:
        boards, given = _boards(asked), _variables(asked.variables)
        values = {name: chosen(board, given) for name, board in boards.items()}
        end = moment(asked.until) if asked.until else time.time()
        window = Window(end, seconds(asked.span), seconds(asked.scrape))
        prometheus = Prometheus(asked.prometheus)
        prometheus.check()
        browser = photo.browser() if asked.out.suffix == ".png" else ""
    except PrometheusError as error:
        return _report(f"cannot query the Prometheus at {shown_url(asked.prometheus)}: {error}", WRONG)
    except ValueError as error:
        return _report(str(error), WRONG)
    except photo.PhotoError as error:
        return _report(str(error), FAILED)
    previews = {
        name: Preview(board, answers(prometheus, board, window, values[name]), window) for name, board in boards.items()
    }
    try:
        for path in _write(previews, asked.out, ", ".join(asked.variables), browser):
            typer.echo(path)
    except OSError as error:
        return _report(f"cannot write {asked.out}: {error}", WRONG)
    except photo.PhotoError as error:
        return _report(f"cannot write {asked.out}: {error}", FAILED)
    failed = [error for shown in previews.values() for error in shown.errors()]
    for each in failed:
        _report(each, FAILED)
    return FAILED if failed else 0


def _boards(asked: PreviewOptions) -> Boards:
    every = build(Options(asked.source, histograms=asked.histograms))
    for name in asked.boards:
        if name not in every:
            raise ValueError(
                f"there is no board {name!r} of {asked.source} metrics: it must be one of {', '.join(every)}"
            )
    return {name: board for name, board in every.items() if name in asked.boards or not asked.boards}


def _variables(given: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals:
            raise ValueError(f"--var {each} must be NAME=VALUE, such as model=llama")
        found.setdefault(name, []).append(value)
    return found


def _write(previews: dict[str, Preview], out: Path, chosen_ones: str, browser: str) -> Iterator[Path]:
    if out.suffix in {".html", ".png"}:
        out.parent.mkdir(parents=True, exist_ok=True)
        made = {out: list(previews.values())}
    else:
        out.mkdir(parents=True, exist_ok=True)
        made = {out / f"{name}.html": [preview] for name, preview in previews.items()}
    for path, shown in made.items():
        text = page(shown, chosen_ones)
        if path.suffix == ".png":
            photo.take(browser, text, sum(preview.height() for preview in shown), path)
        else:
            path.write_text(text, encoding="utf-8")
        yield path


def _report(message: str, code: int) -> int:
    typer.echo(f"vllm-vitals dashboards preview: {message}", err=True)
    return code
