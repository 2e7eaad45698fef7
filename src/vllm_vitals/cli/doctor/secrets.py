"""What may not be shown of the start that is examined, also where its settings are wrong."""

import re
from collections.abc import Iterator, Mapping
from urllib.parse import unquote

from vllm_vitals._util.redact import Redactor, of_header, of_url
from vllm_vitals.cli.doctor.launch import Launch

HEADERS = re.compile(r"(?i).*HEADERS")
QUOTED = re.compile(r'"((?:[^"\\]|\\.){1,16384})"')
"""A text in JSON."""


def redactor(launch: Launch) -> Redactor:
    """Return what hides the secrets of variables and of settings."""
    return Redactor([*_of_variables(launch.environ), *_of_settings(launch)])


def _of_variables(environ: Mapping[str, str]) -> Iterator[str]:
    for name, value in environ.items():
        if "://" in value:
            yield from of_url(value)
        if HEADERS.fullmatch(name):
            for pair in value.split(","):
                yield from of_header(unquote(pair.partition("=")[2]))
            for text in QUOTED.findall(value)[1::2]:
                yield from of_header(text)


def _of_settings(launch: Launch) -> Iterator[str]:
    if otlp := launch.otlp:
        yield from of_url(otlp.endpoint or "")
        for value in otlp.headers.values():
            yield from of_header(value.get_secret_value())
    if (native := launch.native) and native.url:
        yield from of_url(native.url)
