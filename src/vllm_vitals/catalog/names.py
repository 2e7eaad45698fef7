"""Translate OpenTelemetry metric names to Prometheus names, by the OpenTelemetry specification."""

import re

UNITS = {
    "s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds", "min": "minutes",
    "h": "hours", "d": "days", "By": "bytes", "KiBy": "kibibytes", "MiBy": "mebibytes", "GiBy": "gibibytes",
    "TiBy": "tibibytes", "KBy": "kilobytes", "MBy": "megabytes", "GBy": "gigabytes", "TBy": "terabytes",
    "m": "meters", "g": "grams",
    "J": "joules", "W": "watts", "V": "volts", "A": "amperes", "Hz": "hertz", "Cel": "celsius", "%": "percent",
}  # fmt: skip
PER = {"s": "second", "m": "minute", "h": "hour", "d": "day", "w": "week", "mo": "month", "y": "year"}


def prometheus_unit(unit: str, *, gauge: bool) -> str:
    """Return the Prometheus word for a UCUM unit; `""` if there is none.

    Annotations in braces are removed, `a/b` becomes `a_per_b`, and `1` becomes `ratio` for gauges only.
    """
    unit = re.sub(r"\{[^}]*\}", "", unit)
    if unit == "1":
        return "ratio" if gauge else ""
    main, slash, per = unit.partition("/")
    main = UNITS.get(main, main)
    return f"{main}_per_{PER.get(per, per)}".lstrip("_") if slash and per else main


def prometheus_name(name: str, unit: str, *, gauge: bool = False, counter: bool = False) -> str:
    """Return the Prometheus family name of an OpenTelemetry metric (a counter's includes `_total`)."""
    words = re.sub(r"[^a-zA-Z0-9:]+", "_", name).strip("_")
    suffix = prometheus_unit(unit, gauge=gauge)
    if counter and words.endswith("_total"):
        words = words.removesuffix("_total")
    if suffix and not words.endswith(f"_{suffix}"):
        words = f"{words}_{suffix}"
    if words[:1].isdigit():
        words = f"_{words}"
    return f"{words}_total" if counter else words


def prometheus_label(name: str) -> str:
    """Return the Prometheus label name of an OpenTelemetry attribute."""
    label = re.sub(r"[^a-zA-Z0-9]+", "_", name)
    return f"key_{label}" if label[:1].isdigit() else label
