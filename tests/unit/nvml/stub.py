"""A driver that says what a test lets it say: `nvml.c`, built with the system's compiler."""

import ctypes
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).with_name("nvml.c")
NAME = "libnvidia-ml.so.1"
COMPILER = shutil.which("cc")
NOT_SUPPORTED, NO_PERMISSION, DRIVER_NOT_LOADED, TIMEOUT, LOST, UNKNOWN = "!3", "!4", "!9", "!10", "!15", "!999"

EVERY_LINK = 2**32 - 1
GIB = 2**30
H100: dict[str, Any] = {
    "uuid": "GPU-aaaaaaaa-0000", "name": "NVIDIA H100 80GB HBM3", "serial": "165", "vbios": "96.00", "bus": "00000000:1B:00.0",
    "memory2": 0, "total": 80 * GIB, "used": 60 * GIB, "busy": 87, "memory_busy": 40, "power": 412_500,
    "power_limit": 700_000, "energy": 1_000_000, "temperature.0": 66, "field.82.0": "u78", "threshold.1": 87,
    "threshold.0": 92, "threshold.2": 95, "clock.1": 1980, "clock.2": 2619, "reasons": 0, "pcie.1": 2_000_000,
    "pcie.0": 500_000, f"field.138.{EVERY_LINK}": 1000, f"field.139.{EVERY_LINK}": 3000, "ecc.0.0": 3, "ecc.1.0": 0,
    "rows": "0 0 0 0", "processes": f"{os.getpid()}:5000 1:7000",
}  # fmt: skip
"""All that a device of today says, in NVML's units."""


class Driver:
    """What the stub says, by the keys that `nvml.c` explains."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "driver.txt"
        self.calls = folder / "calls.txt"
        self.values: dict[str, Any] = {"driver": "550.54.15", "count": 0}
        self.variables = {"NVML_STUB": str(self.file), "NVML_STUB_CALLS": str(self.calls)}
        self.say({})

    def say(self, values: dict[str, Any]) -> None:
        """Let it say something else; `None` takes away what it said."""
        self.values.update(values)
        lines = [f"{key} {value}\n" for key, value in self.values.items() if value is not None]
        fresh = self.file.with_suffix(".new")
        fresh.write_text("".join(lines), encoding="ascii")
        fresh.replace(self.file)

    def plug(self, index: int, **more: Any) -> None:
        """Put an H100 in, with other values than its usual ones."""
        uuid = f"GPU-{'abcdefgh'[index] * 8}-0000"
        values = {**H100, "uuid": uuid, **more}
        self.say({f"{index}.{key}": value for key, value in values.items()})
        self.say({"count": max(self.values["count"], index + 1)})

    def part(self, gpu: int, place: int, **values: Any) -> None:
        """Make a MIG device in a GPU."""
        self.say({f"{gpu}/{place}.{key}": value for key, value in values.items()})

    def opened(self) -> tuple[int, int]:
        """Return how often the library was initialised, and shut down."""
        calls = self.calls.read_text(encoding="ascii") if self.calls.exists() else ""
        return calls.count("i"), calls.count("s")


def build(folder: Path, *flags: str) -> Path:
    """Build the library in a folder; a test is skipped where there is no compiler."""
    if COMPILER is None:
        pytest.skip("there is no C compiler here (cc) to build the stub of NVIDIA's library with")
    path = folder / NAME
    options = ["-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-Wl,-soname,{NAME}", *flags]
    subprocess.run([COMPILER, *options, "-o", str(path), str(SOURCE)], check=True)
    return path


@cache
def load() -> ctypes.CDLL:
    """Load the library into this process: by its name nvidia-ml-py then finds it, wherever it came from."""
    with tempfile.TemporaryDirectory() as folder:
        return ctypes.CDLL(str(build(Path(folder))))


def driver(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    """Return a driver without devices in this process."""
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    load()
    made = Driver(folder)
    for name, value in made.variables.items():
        monkeypatch.setenv(name, value)
    return made
