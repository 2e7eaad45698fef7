"""The library of NVIDIA's driver, opened and closed, and what its errors mean."""

from contextlib import suppress
from types import ModuleType
from typing import Any

from vllm_vitals.gpu.source import AbsentError, DownError, LostError, NoDriverError, TransientError

DOWN = {"UNINITIALIZED", "DRIVER_NOT_LOADED", "LIBRARY_NOT_FOUND", "LIB_RM_VERSION_MISMATCH"}
LOST = {"GPU_IS_LOST", "RESET_REQUIRED", "GPU_NOT_FOUND"}
ABSENT = {
    "NOT_SUPPORTED", "NO_PERMISSION", "INVALID_ARGUMENT", "NOT_FOUND", "FUNCTION_NOT_FOUND", "VGPU_ECC_NOT_SUPPORTED",
    "ARGUMENT_VERSION_MISMATCH", "DEPRECATED",
}  # fmt: skip
"""What NVML's errors mean, by the names of their codes; any other, such as UNKNOWN or TIMEOUT, may pass."""
FIELDS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Where a field value is, by the number of its type."""


class Library:
    """NVML. Opening it anew is what brings devices back that were lost."""

    def __init__(self) -> None:
        self._pynvml: ModuleType | None = None
        self._kinds: dict[int, type[Exception]] = {}
        self._opened = False

    def open(self) -> None:
        """Load and initialise the library; raises DownError when that fails, NoDriverError when there is none."""
        try:
            import pynvml  # noqa: PLC0415 - only where GPUs are sampled, and on the sampler's thread
        except Exception as error:  # whatever calls itself pynvml here
            raise DownError(f"nvidia-ml-py cannot be imported: {error}") from error
        self._pynvml = pynvml
        for kind, names in ((DownError, DOWN), (LostError, LOST), (AbsentError, ABSENT)):
            self._kinds.update({getattr(pynvml, f"NVML_ERROR_{name}", -1): kind for name in names})
        try:
            pynvml.nvmlInit()
        except Exception as error:  # an NVMLError, or a library that is none
            absent = getattr(error, "value", None) == getattr(pynvml, "NVML_ERROR_LIBRARY_NOT_FOUND", ())
            raise (NoDriverError if absent else DownError)(str(error)) from error
        self._opened = True

    def close(self) -> None:
        """Let go of the library; never raises."""
        if self._opened and self._pynvml is not None:
            self._opened = False
            with suppress(Exception):  # it was gone already
                self._pynvml.nvmlShutdown()

    def call(self, name: str, *args: Any) -> Any:
        """Return what a function of nvidia-ml-py returns.

        Raises:
            AbsentError, TransientError, LostError, DownError: by what NVML says.
        """
        function = getattr(self._pynvml, name, None)
        if function is None:
            raise AbsentError("not in this nvidia-ml-py")
        try:
            return function(*args)
        except Exception as error:  # an NVMLError, or what nvidia-ml-py could not make sense of
            raise self._kinds.get(getattr(error, "value", 0), TransientError)(str(error)) from error

    def fields(self, handle: Any, wanted: list[tuple[int, int]]) -> list[float | Exception]:
        """Return the value of each field and scope, or the error that stands for it; raises as `call` does."""
        return [self._field(each) for each in self.call("nvmlDeviceGetFieldValues", handle, wanted)]

    def _field(self, each: Any) -> float | Exception:
        if each.nvmlReturn:
            return self._kinds.get(each.nvmlReturn, TransientError)(f"error {each.nvmlReturn}")
        if not 0 <= each.valueType < len(FIELDS):
            return AbsentError(f"a value of type {each.valueType}")
        return float(getattr(each.value, FIELDS[each.valueType]))
