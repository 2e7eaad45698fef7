"""Numbers with their units, as Grafana writes them: three digits that say something, a prefix, the unit."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

DIGITS = 3
TINY = 1e-6
"""Below this a number is written with an exponent."""
SECONDS: tuple[tuple[float, str], ...] = (
    (1e-9, "ns"), (1e-6, "µs"), (1e-3, "ms"), (1, "s"), (60, "min"), (3600, "hour"), (86400, "day"), (604800, "week"),
    (31556900, "year"),
)  # fmt: skip
PLURAL = 60
"""Units of time from here on have one."""
YEAR = 31536000
"""Seconds from which on Grafana writes years, which it takes to be a little longer."""
SI = ("n", "µ", "m", "", "k", "M", "G", "T", "P", "E")
SI_UNITS = {"watt": "W", "watth": "Wh", "joule": "J", "flops": "FLOPS", "hertz": "Hz", "Bps": "B/s"}
PREFIXED: dict[str, tuple[int, Sequence[str]]] = {
    "short": (1000, ("", " K", " Mil", " Bil", " Tri")),
    "reqps": (1000, [f"{prefix} req/s" for prefix in ("", "K", "M", "B", "T")]),
    "bytes": (1024, [f" {prefix}B" for prefix in ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")]),
}
"""What a prefix is a power of, and the units with their prefixes."""
PLAIN = {"none": "", "": "", "celsius": "°C"}


@dataclass(frozen=True)
class Scale:
    """What values are divided by, and what is written behind."""

    by: float
    suffix: str


def text(value: float, unit: str, decimals: int | None = None, *, trim: bool = False) -> str:
    """Return a value as it is shown; `trim` leaves zeros at its end out, as axes do."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    found = scale(value, unit)
    if not value and unit == "s":
        return "0 s"
    return _fixed(value / found.by, decimals, trim=trim) + _suffix(found, value)


def scale(value: float, unit: str) -> Scale:
    """Return how values of about this size are written."""
    kind, _, rest = unit.partition(":")
    if unit == "s":
        return _time(abs(value))
    if unit == "percentunit":
        return Scale(0.01, "%")
    if unit in PREFIXED:
        return _scaled(value, *PREFIXED[unit])
    if kind == "si" or unit in SI_UNITS:
        return _scaled(value, 1000, [f" {prefix}{SI_UNITS.get(unit, rest)}" for prefix in SI], SI.index(""))
    of = rest if kind == "suffix" else PLAIN.get(unit, unit)
    return Scale(1, f" {of}" if of else "")


def _scaled(value: float, factor: int, prefixes: Sequence[str], zero: int = 0) -> Scale:
    exponent = math.floor(round(math.log(abs(value), factor), 9)) if value else 0
    exponent = min(max(exponent, -zero), len(prefixes) - 1 - zero)
    return Scale(float(factor) ** exponent, prefixes[zero + exponent])


def _time(size: float) -> Scale:
    if not size:
        return Scale(1, " s")
    fitting = [each for each in SECONDS if size >= (YEAR if each[1] == "year" else each[0])]
    by, name = fitting[-1] if fitting else SECONDS[0]
    return Scale(by, f" {name}")


def _suffix(found: Scale, value: float) -> str:
    """Return what is behind a number; spelt-out units of time have a plural."""
    spelt = found.by >= PLURAL and found.suffix.strip() in {name for _, name in SECONDS}
    return f"{found.suffix}s" if spelt and abs(value / found.by) > 1 else found.suffix


def _fixed(value: float, decimals: int | None, *, trim: bool) -> str:
    if value and abs(value) < TINY and decimals is None:
        digits, _, exponent = f"{value:.{DIGITS - 1}e}".partition("e")
        return f"{digits.rstrip('0').rstrip('.')}e{int(exponent)}"
    places = _decimals(value) if decimals is None else decimals
    made = f"{math.floor(value * 10**places + 0.5) / 10**places:.{places}f}"
    if trim and "." in made:
        made = made.rstrip("0").rstrip(".")
    return made.removeprefix("-") if float(made) == 0 else made


def _decimals(value: float) -> int:
    """Return how many decimals it takes to show three digits; none for an integer."""
    if not value or float(value).is_integer():
        return 0
    return max(0, DIGITS - 1 - math.floor(math.log10(abs(value))))
