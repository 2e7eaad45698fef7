"""The `vllm-vitals` command. Each command imports its modules when it runs, so that `--help` is quick."""

import os
import sys
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup


class Commands(TyperGroup):
    """The commands. If their output cannot be written, they end with one line about it."""

    def main(self, *args: Any, **options: Any) -> Any:  # noqa: D102
        try:
            try:
                return super().main(*args, **options)
            finally:
                if sys.stdout is not None:
                    sys.stdout.flush()
        except OSError as error:
            if sys.stdout is sys.__stdout__:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python flushes once more when it ends
            typer.echo(f"vllm-vitals: {error}", err=True)
            sys.exit(2)


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="The vital signs of a vLLM engine: its metrics, its settings, and a check of the installation.",
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Markdown = Annotated[bool, typer.Option("--markdown", help="Print the Markdown page of the documentation.")]
Port = Annotated[int | None, typer.Option(min=0, max=65535, help="Check this port instead of the one in the settings.")]
Command = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="-- COMMAND",
        help="The planned command line of vLLM: -- vllm serve MODEL ...",
        show_default=False,
    ),
]


boards = typer.Typer(pretty_exceptions_enable=False)
app.add_typer(boards, name="dashboards")


class SourceName(str, Enum):
    """Whose metrics the dashboards show."""

    VITALS = "vitals"
    NATIVE = "native"


class HistogramName(str, Enum):
    """How the histograms on the dashboards are stored."""

    EXPLICIT = "explicit"
    EXPONENTIAL = "exponential"


SourceOption = Annotated[
    SourceName,
    typer.Option(help="vitals: the metrics of this plugin. native: vLLM's own metrics, where no plugin can load."),
]
HistogramsOption = Annotated[
    HistogramName,
    typer.Option(help="exponential: Prometheus has native histograms, from the setting otlp.histograms=exponential."),
]


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
    from vllm_vitals.cli import metrics_page  # noqa: PLC0415

    _one_of(json=json, markdown=markdown)
    if json:
        typer.echo(metrics_page.as_json())
    elif markdown:
        _page(metrics_page.as_markdown())
    else:
        metrics_page.show()


@app.command("settings")
def print_settings(*, markdown: Markdown = False) -> None:
    """List every setting: its variable, file key, default and allowed values."""
    from vllm_vitals.cli import settings_page  # noqa: PLC0415

    if markdown:
        _page(settings_page.as_markdown())
    else:
        settings_page.show()


@app.command("doctor", context_settings={"allow_interspersed_args": False})
def run_doctor(command: Command = None, *, json: Json = False, port: Port = None) -> None:
    """Check, before vLLM starts, that the plugin will load and can serve. Exit code 1 if a check failed.

    Run it in the Python environment of vLLM, with the same environment variables.
    """
    from vllm_vitals.cli.doctor import command as doctor  # noqa: PLC0415

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
        typer.Option(
            help="URL of vLLM's /metrics, instead of a socket; VITALS_NATIVE__URL by default.", show_default=False
        ),
    ] = None,
) -> None:
    """Collect and export in a separate process, until SIGTERM or SIGINT.

    With --socket, vLLM servers send their steps to this process. With --native-url, it fetches vLLM's own metrics, for a
    vLLM in which no plugin can load. All other settings are those of the plugin. Exit code 2 if a setting is wrong, 1 if
    the socket cannot be used.
    """
    from vllm_vitals.cli import sidecar  # noqa: PLC0415

    raise typer.Exit(sidecar.run(socket, native_url))


@boards.callback(invoke_without_command=True)
def write_dashboards(
    context: typer.Context,
    out: Annotated[
        Path | None,
        typer.Option(help="Directory for the files; by default dashboards, or dashboards/native.", show_default=False),
    ] = None,
    datasource: Annotated[
        str, typer.Option(help="uid of the selected Prometheus data source; by default Grafana's default data source.")
    ] = "",
    uid_prefix: Annotated[
        str,
        typer.Option(help="Prefix of the dashboards' uids, for more than one set of dashboards in one Grafana."),
    ] = "vllm-vitals",
    source: SourceOption = SourceName.VITALS,
    histograms: HistogramsOption = HistogramName.EXPLICIT,
) -> None:
    """Write Grafana dashboards as JSON files, for provisioning or import. Needs the extra `dashboards`.

    `dashboards preview` shows them without Grafana.
    """
    from vllm_vitals.cli import dashboards  # noqa: PLC0415

    if context.invoked_subcommand is None:
        raise typer.Exit(dashboards.write(out, source.value, datasource, uid_prefix, histograms.value))
    given = [
        name for name in context.params if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"
    ]
    if given:
        raise typer.BadParameter(f"--{given[0].replace('_', '-')} must come after {context.invoked_subcommand}")


@boards.command("preview")
def preview_dashboards(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="BOARD", help="Names of the boards; by default all.", show_default=False),
    ] = None,
    prometheus: Annotated[
        str, typer.Option(metavar="URL", help="URL of the Prometheus to query.")
    ] = "http://localhost:9090",
    out: Annotated[
        Path,
        typer.Option(
            help="A file that ends in .html or in .png (needs Chromium), or a directory for one page per board."
        ),
    ] = Path("preview.html"),
    span: Annotated[
        str, typer.Option("--range", metavar="DURATION", help="Length of the time range: 15m, 6h, 7d.")
    ] = "1h",
    until: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="End of the time range, such as 2026-01-31T12:00:00Z; now by default.",
            show_default=False,
        ),
    ] = "",
    scrape: Annotated[
        str,
        typer.Option(
            "--scrape-interval",
            metavar="DURATION",
            help="Scrape interval of the Prometheus, as in Grafana's data source.",
        ),
    ] = "15s",
    variables: Annotated[
        list[str] | None,
        typer.Option(
            "--var",
            metavar="NAME=VALUE",
            help="Select a value of a dashboard variable, such as model. Repeat it for more values.",
            show_default=False,
        ),
    ] = None,
    source: SourceOption = SourceName.VITALS,
    histograms: HistogramsOption = HistogramName.EXPLICIT,
) -> None:
    """Draw dashboards from a live Prometheus into one page, without Grafana. Needs the extra `preview`.

    Exit code 1 if a query failed; 2 if an option is wrong, Prometheus does not answer, or the output cannot be written.
    """
    from vllm_vitals.cli import dashboards  # noqa: PLC0415
    from vllm_vitals.cli.preview_options import PreviewOptions  # noqa: PLC0415

    asked = PreviewOptions(
        tuple(names or ()), prometheus, out, span, until, scrape, tuple(variables or ()), source.value, histograms.value
    )
    raise typer.Exit(dashboards.preview(asked))


@app.command("rules")
def print_rules(
    *,
    out: Annotated[
        Path | None, typer.Option(help="Write one file per group of rules to this directory.", show_default=False)
    ] = None,
    stdout: Annotated[bool, typer.Option("--stdout", help="Print all rules as one file.")] = False,
    config: Annotated[
        Path | None,
        typer.Option(help="YAML file with your own thresholds, windows, labels or severities.", show_default=False),
    ] = None,
    markdown: Markdown = False,
) -> None:
    """Write recording rules and alerts for Prometheus. docs/alerts.md explains them and their settings.

    Exit code 2 if the configuration is wrong, or the files cannot be written.
    """
    from vllm_vitals.cli import rules, rules_page  # noqa: PLC0415

    if [out is not None, stdout, markdown].count(True) != 1:
        raise typer.BadParameter("give exactly one of --out, --stdout and --markdown")
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
    try:
        written = rules.write(chosen, out)
    except OSError as error:
        typer.echo(f"vllm-vitals rules: cannot write to {out}: {error}", err=True)
        raise typer.Exit(2) from error
    for path in written:
        typer.echo(path)


def _one_of(*, json: bool, markdown: bool) -> None:
    if json and markdown:
        raise typer.BadParameter("--json and --markdown cannot be used together")


def _page(text: str) -> None:
    typer.echo(text, nl=False)
