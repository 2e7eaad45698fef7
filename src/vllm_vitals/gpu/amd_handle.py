"""One of AMD SMI's devices, asked for one value after the other; what it does not have is not asked for again."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from vllm_vitals.gpu.amd_library import Library
from vllm_vitals.gpu.source import AbsentError, LostError, TransientError

NO_VALUE = "no value"
SETTLED = 2
"""The reading at which it is told what a device did not tell so far."""


def number(value: Any) -> float | None:
    """Return a number as it is; `None` for what stands in its place, such as "N/A"."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def first(values: Mapping[str, Any], *names: str) -> float | None:
    """Return the first of some values that is a number."""
    return next((found for found in (number(values.get(name)) for name in names) if found is not None), None)


def scaled(value: float | None, factor: float) -> float | None:
    """Return a value in another unit."""
    return None if value is None else value * factor


class Handle:
    """A device as long as the library is open. Its methods raise DownError when that is what AMD SMI says."""

    def __init__(self, library: Library, handle: Any) -> None:
        self._library = library
        self._handle = handle
        self._absent: dict[str, str] = {}
        """Why a value cannot be had."""
        self._silent: dict[str, str] = {}
        """Why there was none when it was last asked for."""
        self._answered = False
        self._readings = 0
        self.vital = False
        """Whether a sensor has answered in this reading."""

    def begin(self) -> None:
        """Begin a reading."""
        self._answered = self.vital = False
        self._readings += 1

    def ask(self, key: str, name: str, *args: Any, pick: Callable[[Any], Any] = number, sensor: bool = True) -> Any:
        """Return what a function gives, `None` without a value.

        `key` is what the value is called in the log, `args` are the function's after the device. `pick` takes the value
        out of what it returns. `sensor`: the hardware has to be there for it, not its driver alone.
        """
        if key in self._absent:
            return None
        try:
            value = pick(self._library.call(name, self._handle, *args))
        except AbsentError as error:
            self._absent[key] = str(error)
        except TransientError as error:
            self._silent[key] = str(error)
        except (LookupError, TypeError, ValueError) as error:
            self._absent[key] = f"amdsmi returns something else: {error!r}"
        else:
            self._answered = True
            self.vital = self.vital or sensor
            return self.seen(key, value)
        return None

    def seen(self, key: str, value: Any) -> Any:
        """Return a value that came along with others, and take note of whether there is one."""
        self._silent.pop(key, None)
        if value is None:
            self._silent[key] = NO_VALUE
        return value

    def trouble(self) -> str:
        """Return why most of what there is no value of has none, by what has changed of late if anything has."""
        silent, absent = (Counter(each.values()) for each in (self._silent, self._absent))
        silent.pop(NO_VALUE, None)
        return next((reason for reason, _ in (silent or absent).most_common(1)), NO_VALUE)

    def finish(self) -> str:
        """End a reading; return what the device does not tell when that is clear. LostError when it told nothing."""
        if not self._answered:
            raise LostError(self.trouble())
        if self._readings != SETTLED:
            return ""
        why = {**self._silent, **self._absent}
        reasons: dict[str, list[str]] = {}
        for key, reason in sorted(why.items()):
            reasons.setdefault(reason, []).append(key)
        return "; ".join(f"{', '.join(keys)} ({reason})" for reason, keys in reasons.items())
