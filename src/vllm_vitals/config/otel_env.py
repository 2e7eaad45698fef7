"""The standard `OTEL_*` variables, read for the metrics signal in the specification's order.

As the specification asks, a value that it does not allow causes a warning, and the default is used. A missing file is an
error: without it, the wrong peers would be trusted.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from pydantic import ValidationError

from vllm_vitals._util.bounds import clean, shown
from vllm_vitals._util.redact import shown_text
from vllm_vitals.config.settings import OtlpSettings

Path_ = tuple[str, ...]
MAX_VARIABLE_LENGTH = 2**17
"""Characters of a variable's value. The Linux kernel accepts no more."""
MAX_VALUE_LENGTH = 250
"""Characters of a value in a message."""
SUSPICIOUS_TIMEOUT_SECONDS = 1.0
"""A shorter timeout was probably meant in seconds, not milliseconds."""


def _same(text: str) -> Any:
    return text


def _milliseconds(text: str) -> float:
    try:
        return float(text) / 1000
    except ValueError:  # its message repeats the text, which may hold a password
        raise ValueError("expected a number") from None


def _lower(text: str) -> str:
    return text.lower()


def _true(text: str) -> bool:
    """Return a boolean as the specification reads it: only `true` is true."""
    return text.strip().lower() == "true"


def pairs(text: str) -> dict[str, str]:
    """Return `key1=value1,key2=value2` with percent-encoded parts as a mapping.

    Raises:
        ValueError: when a part has no `=` or no key.
    """
    found: dict[str, str] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise ValueError("expected key1=value1,key2=value2")
        found[unquote(key.strip())] = unquote(value.strip())
    return found


def _aggregation(text: str) -> str:
    known = {"explicit_bucket_histogram": "explicit", "base2_exponential_bucket_histogram": "exponential"}
    if text.lower() not in known:
        raise ValueError(f"expected one of {', '.join(known)}")
    return known[text.lower()]


@dataclass(frozen=True)
class Variable:
    """A setting with standard variables. The first that is set counts."""

    names: tuple[str, ...]
    path: Path_
    parse: Callable[[str], Any] = _same
    lenient: bool = True
    """Whether a wrong value causes a warning instead of an error."""
    secret: bool = False


def _otlp(name: str, field: str, parse: Callable[[str], Any] = _same, **options: Any) -> Variable:
    names = (f"OTEL_EXPORTER_OTLP_METRICS_{name}", f"OTEL_EXPORTER_OTLP_{name}")
    return Variable(names, ("otlp", field), parse, **options)


VARIABLES = (
    Variable(("OTEL_EXPORTER_PROMETHEUS_HOST",), ("prometheus", "host"), lenient=False),
    Variable(("OTEL_EXPORTER_PROMETHEUS_PORT",), ("prometheus", "port"), lenient=False),
    _otlp("ENDPOINT", "endpoint", lenient=False),
    _otlp("PROTOCOL", "protocol", _lower),
    _otlp("HEADERS", "headers", pairs, secret=True),
    _otlp("CERTIFICATE", "tls_ca", lenient=False),
    _otlp("CLIENT_CERTIFICATE", "tls_cert", lenient=False),
    _otlp("CLIENT_KEY", "tls_key", lenient=False),
    _otlp("INSECURE", "insecure", _true),
    _otlp("COMPRESSION", "compression", _lower),
    _otlp("TIMEOUT", "timeout", _milliseconds),
    Variable(("OTEL_METRIC_EXPORT_INTERVAL",), ("otlp", "interval"), _milliseconds),
    Variable(("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE",), ("otlp", "temporality"), _lower),
    Variable(("OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION",), ("otlp", "histograms"), _aggregation),
    Variable(("OTEL_SERVICE_NAME",), ("otlp", "service_name")),
    Variable(("OTEL_RESOURCE_ATTRIBUTES",), ("otlp", "resource"), pairs),
)
"""Every supported standard variable. Variables of other signals are not supported."""


def read(environ: Mapping[str, str], warnings: list[str]) -> Iterator[tuple[Path_, Any, str]]:
    """Yield the setting, value and variable of each standard variable. An empty variable counts as not set."""
    for variable in VARIABLES:
        name = next((name for name in variable.names if environ.get(name, "").strip()), None)
        if name is None:
            continue
        given = "" if variable.secret else f"={shown(environ[name], MAX_VALUE_LENGTH, shown_text)}"
        try:
            value = _value(variable, environ[name])
        except (ValueError, ValidationError) as error:
            reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
            default = OtlpSettings.model_fields[variable.path[-1]].get_default(call_default_factory=True)
            unit = (
                ""
                if variable.parse is not _milliseconds
                else f"; the unit is milliseconds: {1000 * default:.0f} means {default:g} s"
            )
            warnings.append(
                f"{name}{given} is ignored ({clean(reason, MAX_VALUE_LENGTH)}); "
                f"{'.'.join(variable.path)} stays {default!r}{unit}"
            )
            continue
        yield variable.path, value, name
        if variable.path == ("otlp", "timeout") and value < SUSPICIOUS_TIMEOUT_SECONDS:
            meant = 1000 * value
            warnings.append(
                f"{name}{given} means {value:g} s, because its unit is milliseconds; for {meant:g} s write {1000 * meant:.0f}"
            )
        if variable.path == ("otlp", "endpoint"):
            # By the specification, the signal's own endpoint is used unchanged; the common one gets the path appended.
            yield ("otlp", "signal_path"), name == "OTEL_EXPORTER_OTLP_ENDPOINT", name
    if off := _switch(environ, warnings):
        yield ("otlp", "enabled"), False, off


def _value(variable: Variable, text: str) -> Any:
    """Return the value of a variable; raise `ValueError`, or pydantic's error, if it is not allowed."""
    if len(text) > MAX_VARIABLE_LENGTH:
        raise ValueError(f"it is longer than {MAX_VARIABLE_LENGTH} characters")
    value = variable.parse(text.strip())
    if variable.lenient:
        OtlpSettings.model_validate({variable.path[-1]: value})
    return value


def _switch(environ: Mapping[str, str], warnings: list[str]) -> str:
    """Return the variable that turns the push off, or `""`."""
    if environ.get(SDK_DISABLED, "").strip().lower() == "true":
        return SDK_DISABLED
    text = environ.get(METRICS_EXPORTER, "")
    names = [name for name in map(str.strip, text[:MAX_VARIABLE_LENGTH].lower().split(",")) if name]
    known = [name for name in names if name in SELECTABLE]
    if idle := list(dict.fromkeys(name for name in names if name not in SUPPORTED)):
        warnings.append(
            f"{METRICS_EXPORTER}={shown(text, MAX_VALUE_LENGTH, shown_text)}: {clean(', '.join(idle[:MAX_IGNORED_NAMES]), MAX_VALUE_LENGTH)} "
            f"has no effect; the supported names are {', '.join(SUPPORTED)}"
        )
    return METRICS_EXPORTER if known and ("none" in known or "otlp" not in known) else ""


SWITCHES = SDK_DISABLED, METRICS_EXPORTER = "OTEL_SDK_DISABLED", "OTEL_METRICS_EXPORTER"
"""Variables that can turn the push off."""
SUPPORTED = ("otlp", "prometheus", "none")
SELECTABLE = (*SUPPORTED, "console", "logging")
"""Names in the specification. Other names are ignored and select nothing."""
MAX_IGNORED_NAMES = 10
