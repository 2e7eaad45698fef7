"""`vllm-vitals doctor`: whether the plugin will load here, and whether it can serve."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from urllib.parse import unquote

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from vllm_vitals import __version__
from vllm_vitals._util.redact import Redactor, of_header, of_url
from vllm_vitals.cli.doctor import CHECKS
from vllm_vitals.cli.doctor.finding import Finding, Status, fail
from vllm_vitals.cli.doctor.launch import Launch
from vllm_vitals.cli.output import console

HEADER_VARIABLES = re.compile(r"(?i).*HEADERS")
JSON_STRING = re.compile(r'"((?:[^"\\]|\\.){1,16384})"')
MARKS = {
    Status.OK: Text("ok", "green"),
    Status.WARN: Text("warn", "yellow bold"),
    Status.FAIL: Text("FAIL", "red bold"),
    Status.SKIP: Text("skip", "dim"),
}


@dataclass(frozen=True)
class Report:
    """All findings of one run."""

    findings: list[Finding]
    url: str

    @property
    def failed(self) -> list[str]:
        """Return the ids of the failed checks."""
        return self._with(Status.FAIL)

    def as_json(self) -> str:
        """Return the report as one JSON object."""
        counts = Counter(finding.status.value for finding in self.findings)
        content = {
            "version": __version__,
            "ok": not self.failed,
            "counts": {status.value: counts[status.value] for status in Status},
            "checks": [_entry(finding) for finding in self.findings],
        }
        return json.dumps(content, indent=2)

    def show(self) -> None:
        """Print one line for each finding, with its advice below it, and a summary."""
        out = console()
        lines = Table.grid(padding=(0, 2, 0, 0))
        lines.add_column(no_wrap=True)
        lines.add_column(no_wrap=True)
        lines.add_column()
        for finding in self.findings:
            lines.add_row(MARKS[finding.status], finding.id, finding.found)
            if finding.advice:
                lines.add_row("", "", Padding(Text(finding.advice, "cyan"), (0, 0, 0, 2)))
        out.print(lines)
        out.print()
        out.print(self._summary(), style="bold")

    def _with(self, status: Status) -> list[str]:
        return list(dict.fromkeys(finding.id for finding in self.findings if finding.status is status))

    def _summary(self) -> str:
        failed, warned = self.failed, self._with(Status.WARN)
        look = f" Check the warnings too: {', '.join(warned)}." if warned else ""
        if failed:
            return f"Not ready. Failed: {', '.join(failed)}. Follow the advice above before vLLM starts.{look}"
        ready = f"Ready: nothing failed.{look}"
        return f"{ready} Metrics will be at {self.url}" if self.url else ready


def examine(environ: Mapping[str, str], command: Sequence[str] | None = None) -> Report:
    """Run every check on a planned start of vLLM."""
    launch = Launch(environ, command)
    findings = list(_findings(launch))
    failed = any(finding.status is Status.FAIL for finding in findings)
    return Report(findings, "" if failed else _url(launch))


def _findings(launch: Launch) -> Iterator[Finding]:
    hide = partial(redactor(launch).clean, short=False)
    for finding in _all(launch):
        yield replace(finding, found=hide(finding.found), advice=hide(finding.advice))


def _all(launch: Launch) -> Iterator[Finding]:
    for name, check in CHECKS.items():
        try:
            for finding in check(launch):
                yield replace(finding, id=name)
        except Exception as error:  # noqa: BLE001 - the other checks still run
            yield replace(fail(f"the check itself failed: {type(error).__name__}: {error}"), id=name)


def _entry(finding: Finding) -> dict[str, str]:
    entry = asdict(finding)
    return {name: getattr(entry[name], "value", entry[name]) for name in ("id", "status", "found", "advice")}


def _url(launch: Launch) -> str:
    settings = launch.prometheus
    if settings is None or not settings.enabled or not settings.port or launch.sidecar or launch.api_servers < 1:
        return ""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{'https' if settings.tls_cert else 'http'}://{host}:{settings.port}/metrics"


def redactor(launch: Launch) -> Redactor:
    """Return a redactor for the secrets in variables and settings, also where the settings are wrong."""
    return Redactor([*_of_variables(launch.environ), *_of_settings(launch)])


def _of_variables(environ: Mapping[str, str]) -> Iterator[str]:
    for name, value in environ.items():
        if "://" in value:
            yield from of_url(value)
        if HEADER_VARIABLES.fullmatch(name):
            for pair in value.split(","):
                yield from of_header(unquote(pair.partition("=")[2]))
            for text in JSON_STRING.findall(value)[1::2]:
                yield from of_header(text)


def _of_settings(launch: Launch) -> Iterator[str]:
    if otlp := launch.otlp:
        yield from of_url(otlp.endpoint or "")
        for value in otlp.headers.values():
            yield from of_header(value.get_secret_value())
    if (native := launch.native) and native.url:
        yield from of_url(native.url)
