"""The `vllm-vitals` command. What a command needs is imported when it runs, so that `--help` is quick."""

import sys
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="The vital signs of a vLLM engine: what is measured, what can be set, and whether it will work here.",
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Markdown = Annotated[bool, typer.Option("--markdown", help="Print the Markdown page of the documentation.")]
Port = Annotated[int | None, typer.Option(min=0, max=65535, help="Check this port in place of the one that is set.")]
Command = Annotated[
    list[str] | None,
    typer.Argument(metavar="-- COMMAND", help="The command line that vLLM will be started with: -- vllm serve MODEL ...", show_default=False),
]  # fmt: skip


class SourceName(str, Enum):
    """Whose metrics the dashboards show."""

    VITALS = "vitals"
    NATIVE = "native"


class HistogramName(str, Enum):
    """How histograms are stored that the dashboards show."""

    EXPLICIT = "explicit"
    EXPONENTIAL = "exponential"


def _version(asked: bool) -> None:  # noqa: FBT001 - typer's callback convention
    if asked:
        from vllm_vitals import __version__  # noqa: PLC0415

        typer.echo(f"vllm-vitals {__version__}")
        raise typer.Exit


@app.callback()
def main(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Hold the options that come before a command."""


@app.command("metrics")
def print_metrics(*, json: Json = False, markdown: Markdown = False) -> None:
    """List every metric: its names, labels and meaning, and the vLLM metric it corresponds to."""
    from vllm_vitals.cli import metrics  # noqa: PLC0415

    _one_of(json=json, markdown=markdown)
    if json:
        typer.echo(metrics.as_json())
    elif markdown:
        _page(metrics.as_markdown())
    else:
        metrics.show()


@app.command("settings")
def print_settings(*, markdown: Markdown = False) -> None:
    """List every setting: its variable, file key, default and what is allowed."""
    from vllm_vitals.cli import settings  # noqa: PLC0415

    if markdown:
        _page(settings.as_markdown())
    else:
        settings.show()


@app.command("doctor", context_settings={"allow_interspersed_args": False})
def run_doctor(command: Command = None, *, json: Json = False, port: Port = None) -> None:
    """Check, before vLLM starts, that the plugin will load and can serve: exit code 1 when a check failed.

    Run it with the Python environment and the variables that vLLM will have.
    """
    import os  # noqa: PLC0415

    from vllm_vitals.cli import doctor  # noqa: PLC0415

    environ = dict(os.environ) if port is None else os.environ | {"VITALS_PROMETHEUS__PORT": str(port)}
    report = doctor.examine(environ, command)
    if json:
        typer.echo(report.as_json())
    else:
        report.show()
    raise typer.Exit(1 if report.failed else 0)


@app.command("sidecar")
def run_sidecar(
    socket: Annotated[
        Path | None, typer.Option(help="Unix socket to listen on; VITALS_WIRE__SIDECAR by default.", show_default=False)
    ] = None,
    native_url: Annotated[
        str | None,
        typer.Option(help="vLLM's /metrics, in place of a socket; VITALS_NATIVE__URL by default.", show_default=False),
    ] = None,
) -> None:
    """Collect and export as a process of its own, until SIGTERM or SIGINT.

    With --socket for the vLLM servers that send their steps there; with --native-url from vLLM's own metrics,
    where no plugin can load. All other settings are those of the plugin. Exit code 2 when they are wrong, 1 when the socket cannot be had.
    """
    from vllm_vitals.cli import sidecar  # noqa: PLC0415

    raise typer.Exit(sidecar.run(socket, native_url))


@app.command("dashboards")
def write_dashboards(
    out: Annotated[
        Path | None,
        typer.Option(help="Directory for the files; dashboards, or dashboards/native, by default.", show_default=False),
    ] = None,
    datasource: Annotated[
        str, typer.Option(help="uid of the Prometheus data source to begin with; Grafana's default without.")
    ] = "",
    uid_prefix: Annotated[
        str,
        typer.Option(help="What the uids of the dashboards begin with, for more than one set of them in a Grafana."),
    ] = "vllm-vitals",
    source: Annotated[
        SourceName, typer.Option(help="vitals: this plugin's metrics. native: vLLM's own, where no plugin can load.")
    ] = SourceName.VITALS,
    histograms: Annotated[
        HistogramName,
        typer.Option(
            help="exponential: as the setting otlp.histograms=exponential leaves them in a Prometheus (native histograms)."
        ),
    ] = HistogramName.EXPLICIT,
) -> None:
    """Write Grafana's dashboards as JSON files, to be provisioned or imported. Needs the extra `dashboards`."""
    from vllm_vitals.cli import dashboards  # noqa: PLC0415

    raise typer.Exit(dashboards.write(out, source.value, datasource, uid_prefix, histograms.value))


@app.command("rules")
def print_rules(
    *,
    out: Annotated[
        Path | None, typer.Option(help="Write a file for each group of rules here.", show_default=False)
    ] = None,
    stdout: Annotated[bool, typer.Option("--stdout", help="Print all of them as one file.")] = False,
    config: Annotated[
        Path | None, typer.Option(help="YAML with other thresholds, windows, labels or severities.", show_default=False)
    ] = None,
    markdown: Markdown = False,
) -> None:
    """Make recording rules and alerts for Prometheus: docs/alerts.md tells what they mean and what can be set.

    Exit code 2 when the configuration is wrong.
    """
    from vllm_vitals.cli import rules, rules_page  # noqa: PLC0415

    if [out is not None, stdout, markdown].count(True) != 1:
        raise typer.BadParameter("one of --out, --stdout and --markdown must be given")
    if markdown:
        _page(rules_page.page())
        return
    try:
        chosen = rules.configuration(config)
    except rules.RulesConfigError as error:
        typer.echo(error, err=True)
        raise typer.Exit(2) from error
    if out is None:
        _page(rules.as_text(chosen))
        return
    for path in rules.write(chosen, out):
        typer.echo(path)


def _one_of(*, json: bool, markdown: bool) -> None:
    if json and markdown:
        raise typer.BadParameter("--json and --markdown exclude each other")


def _page(text: str) -> None:
    sys.stdout.write(text)
