"""Small texts that cost much to read or to show; run as a program it reads each of them, and says so."""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from vllm_vitals._util.files import MOST_BYTES
from vllm_vitals.config.load import MAX_LINE_LENGTH, SettingsError, load

M = MOST_BYTES - 100
LAUGHS = "".join(f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10))
YAML = {
    "laughs": f"a0: &a0 [{','.join('x' * 10)}]\n{LAUGHS}slos: *a9\n",
    "laughs in place": f"slos: [&a [x,x,x,x,x,x,x,x,x], {', '.join(f'&b{n} [*a,*a,*a,*a,*a]' for n in range(900))}]",
    "merges": f"a: &a {{b: 1}}\nc: &c {{<<: [{','.join(['*a'] * 3000)}]}}\nd: {{<<: [{','.join(['*c'] * 900)}]}}\n",
    "nested": "[" * M,
    "nested sequences": "- " * (M // 2),
    "nested keys": "? " * (M // 2),
    "six hundred": f"a: {'[' * 600}{']' * 600}",
    "indented": "".join(f"{' ' * n}-\n" for n in range(int((2 * M) ** 0.5) - 2)),
    "names": "".join(f"name{n}: 1\n" for n in range(4900)),
    "more names": "".join(f"name{n}: 1\n" for n in range(M // 16)),
    "one name": f"{'x' * 900}: 1\n",
    "text": f"queue_size: {'x' * M}",
    "blanks": f"queue_size: {' ' * M}x",
    "newlines": "\n" * M,
    "escapes": '"' + "\\x41" * (M // 4) + '"',
    "lines": "a: |\n" + " x\n" * (M // 3),
    "values": f"slos: [{'1,' * 9900}]",
    "wrong SLOs": f"slos: [{'{},' * 9900}]",
    "SLOs of the same name": f"slos: [{'{name: a},' * 3000}]",
    "bounds": f"buckets: {{step: [{'x,' * 9900}]}}",
    "headers": f"otlp: {{headers: {{{','.join(f'a{n}: []' for n in range(4900))}}}}}",
    "digits": f"queue_size: !!int {'9' * M}",
    "sixties": f"queue_size: 1{':1' * (M // 2)}",
    "anchors": f"a: [{'&a 1,' * (M // 6)}]",
    "documents": "---\n" * (M // 4),
    "empty number": 'queue_size: !!int ""',
    "too large": "#" * (MOST_BYTES + 1),
    "itself": "slos: &a [*a]",
}
TOML = {
    "dotted": f"a{'.a' * (M // 2)} = 1",
    "quoted dots": f'"#"{".a" * (M // 2)} = 1',
    "dots": "\n".join(f"a{'.a' * 30}.b{n} = 1" for n in range(M // 75)),
    "nested": f"a = {'[' * M}",
    "hundreds": f"a = {'[' * 900}{']' * 900}",
    "inline": f"a = {'{a = ' * (M // 5)}",
    "values": f"slos = [{'1,' * 9900}]",
    "names": "\n".join(f"name{n} = 1" for n in range(9900)),
    "escapes": f'a = "{(chr(92) + "n") * (M // 2 - 5)}"',
    "digits": f"queue_size = {'9' * M}",
    "hexadecimal": f"queue_size = 0x{'F' * (M - 20)}",
    "quotes": '"""' * (M // 3),
    "tables": "".join(f"[a{n}]\n" for n in range(1900)),
}
VARIABLES = {
    "nested": {"VITALS_SLOS": "[" * 130_000},
    "nested objects": {"VITALS_BUCKETS": '{"a":' * 26_000},
    "values": {"VITALS_SLOS": f"[{'1,' * 65_000}1]"},
    "keys": {"VITALS_OTLP": f"{{{','.join(f'{chr(34)}{n}{chr(34)}:1' for n in range(13_000))}}}"},
    "the same key": {"VITALS_OTLP": "{" + ",".join(['"a":1'] * 20_000) + "}"},
    "text": {"VITALS_QUEUE_SIZE": "x" * 131_000},
    "more text": {"VITALS_QUEUE_SIZE": "x" * 5_000_000, "OTEL_EXPORTER_OTLP_TIMEOUT": "1" * 5_000_000},
    "unknown": {f"VITALS_NAME{n}": "1" for n in range(20_000)},
    "unknown in a section": {f"VITALS_PROMETHEUS__NAME{n}": "1" for n in range(20_000)},
    "parts": {f"VITALS_PROMETHEUS{'__A' * 40_000}": "1", f"VITALS_{'X' * 130_000}": "1", "VITALS_" * 18_000: "1"},
    "headers": {"OTEL_EXPORTER_OTLP_HEADERS": "a=1," * 32_000, "OTEL_RESOURCE_ATTRIBUTES": "%41=%42," * 16_000},
    "exporters": {"OTEL_METRICS_EXPORTER": "x," * 65_000},
}


def environments(directory: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each bomb by its name, files in a directory."""
    for kind, bombs in (("yaml", YAML), ("toml", TOML)):
        for name, text in bombs.items():
            path = directory / f"bomb.{kind}"
            path.write_text(text)
            yield f"{kind}: {name}", {"VITALS_CONFIG": str(path)}
    yield from ((f"variable: {name}", environ) for name, environ in VARIABLES.items())


def main() -> None:
    """Read each of them."""
    with tempfile.TemporaryDirectory() as directory:
        for name, environ in environments(Path(directory)):
            try:
                lines = load(environ).warnings
            except SettingsError as error:
                lines = [*str(error).split("\n"), *error.warnings]
            worst = max(map(len, lines), default=0)
            sys.stdout.write(f"{name}: {len(lines)} lines, the longest of {worst}\n")
            assert worst <= MAX_LINE_LENGTH, name
            assert len(lines) < 100, name


if __name__ == "__main__":
    main()
