"""One of NVML's devices, asked for one value after the other; what it does not have is not asked for again."""

import logging
from collections.abc import Mapping
from typing import Any

from vllm_vitals._util.log import log_once
from vllm_vitals._util.pacing import checkpoint
from vllm_vitals.gpu.nvml_library import Library
from vllm_vitals.gpu.source import AbsentError, DownError, LostError, TransientError
from vllm_vitals.records.gpu import Gpu


class Handle:
    """A device as long as the library is open. Its methods raise LostError or DownError when that is what NVML says."""

    def __init__(self, library: Library, handle: Any, gpu: Gpu) -> None:
        self._library = library
        self._handle = handle
        self._gpu = gpu
        self._absent: dict[str, list[str]] = {}
        """Why a value cannot be had, for each way to get it that was tried."""
        self._lacking: set[str] = set()
        self._answered = False
        self._trouble = ""

    def begin(self) -> None:
        """Begin a reading."""
        self._answered, self._trouble = False, ""

    def ask(self, key: str, *calls: tuple[Any, ...]) -> Any:
        """Return what the first of some functions gives that this device has, `None` without a value.

        `key` is what the value is called in the log; `calls` are a function's name and its arguments after the device.
        """
        tried = self._absent.get(key, [])
        for name, *args in calls[len(tried) :]:
            checkpoint()
            try:
                value = self._library.call(name, self._handle, *args)
            except AbsentError as error:
                tried = self._absent.setdefault(key, tried)
                tried.append(str(error))
            except TransientError as error:
                self._trouble = str(error)
                return None
            else:
                self._answered = True
                return value
        self._lacking.add(key)
        return None

    def fields(self, fields: Mapping[str, tuple[int, int]]) -> dict[str, float]:
        """Return the values of fields, by number and scope, that are there, with one call for all of them."""
        wanted = {key: field for key, field in fields.items() if key not in self._lacking}
        checkpoint()
        values: list[float | Exception] = []
        try:
            values = self._library.fields(self._handle, list(wanted.values())) if wanted else []
        except AbsentError as error:
            values = [error] * len(wanted)
        except TransientError as error:
            self._trouble = str(error)
        found = dict(zip(wanted, values, strict=False))
        for key, value in found.items():
            if isinstance(value, LostError | DownError):
                raise value
            if isinstance(value, AbsentError):
                self._absent[key] = [str(value)]
                self._lacking.add(key)
        return {key: value for key, value in found.items() if isinstance(value, float)}

    def finish(self) -> None:
        """End a reading: say once what the device does not have; raises LostError when it gave nothing but trouble."""
        if self._trouble and not self._answered:
            raise LostError(self._trouble)
        reasons: dict[str, list[str]] = {}
        for key in sorted(self._lacking):
            reasons.setdefault(self._absent[key][-1], []).append(key)
        if reasons:
            told = "; ".join(f"{', '.join(keys)} ({reason})" for reason, keys in reasons.items())
            log_once(logging.INFO, "%s %s does not tell: %s", self._gpu.name or "GPU", self._gpu.id, told)
