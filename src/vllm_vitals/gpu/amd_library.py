"""AMD SMI, the library of ROCm, through the Python package `amdsmi`; and what its errors mean."""

from contextlib import redirect_stdout
from io import StringIO
from types import ModuleType
from typing import Any

from vllm_vitals.gpu.source import AbsentError, DownError, TransientError

DOWN = {"FAIL_LOAD_MODULE", "INIT_ERROR", "NOT_INIT", "DRIVER_NOT_LOADED"}
ABSENT = {"INVAL", "NOT_SUPPORTED", "NOT_YET_IMPLEMENTED", "FAIL_LOAD_SYMBOL", "NO_PERM"}
"""What the status codes mean, by name; any other, such as BUSY or UNEXPECTED_DATA, may pass.

None says for certain that a device is gone: its files are, and so it is NOT_SUPPORTED, NOT_FOUND or IO, by release.
"""
PREFIX = "AMDSMI_STATUS_"
INSTALL = "the Python package amdsmi is not installed: pip install 'vllm-vitals[amd]', or ROCm's own from share/amd_smi"
MISMATCH = "it and libamd_smi.so have to be of the same release of ROCm"


class Library:
    """AMD SMI, opened once in a process: many releases do not bear to be closed and opened again."""

    def __init__(self) -> None:
        self._amdsmi: ModuleType | None = None

    def open(self) -> None:
        """Load and initialise the library; raises DownError when that fails."""
        self._amdsmi = _load()
        try:
            self.call("amdsmi_init")
        except (AbsentError, TransientError) as error:
            raise DownError(str(error)) from error

    def call(self, name: str, *args: Any) -> Any:
        """Return what a function of amdsmi returns; an argument such as `AmdSmiClkType.GFX` is written as a string.

        Raises:
            AbsentError, TransientError, DownError: by what AMD SMI says.
        """
        function = getattr(self._amdsmi, name, None)
        if function is None:
            raise AbsentError(f"{name} is not in this amdsmi")
        try:
            return function(*(self._enumerated(arg) if isinstance(arg, str) else arg for arg in args))
        except Exception as error:  # an AmdSmiException, or what amdsmi could not make sense of
            status = _status(error)
            kind = status.removeprefix(PREFIX)
            meaning = DownError if kind in DOWN else AbsentError if kind in ABSENT or not status else TransientError
            raise meaning(status or f"amdsmi fails: {type(error).__name__}: {error}") from error

    def _enumerated(self, path: str) -> Any:
        found: Any = self._amdsmi
        for part in path.split("."):
            found = getattr(found, part)
        return found


def _load() -> ModuleType:
    said = StringIO()  # what it prints
    try:
        with redirect_stdout(said):
            import amdsmi  # noqa: PLC0415 - only where AMD's GPUs are sampled, in a process for that alone
    except ModuleNotFoundError as error:
        raise DownError(INSTALL if error.name == "amdsmi" else f"amdsmi cannot be imported: {error}") from error
    except AttributeError as error:
        raise DownError(f"amdsmi cannot be imported: {error}; {MISMATCH}") from error
    except Exception as error:  # a KeyError where it finds no libamd_smi.so, in some releases another
        why = said.getvalue().strip().partition("\n")[0] or f"{type(error).__name__}: {error}"
        raise DownError(f"amdsmi cannot be imported, does it find ROCm's libamd_smi.so? {why}") from error
    module: ModuleType = amdsmi
    return module


def _status(error: Exception) -> str:
    """Return the name of a status code, `""` for what is none."""
    try:
        return str(error.get_error_info(detailed=False))  # type: ignore[attr-defined]
    except Exception:  # noqa: BLE001 - it is no error of the library
        return ""
