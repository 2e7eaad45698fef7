"""AMD SMI that says what a test lets it say: `amdsmi.c`, built with the system's compiler."""

import atexit
import ctypes
import os
import re
import shutil
import subprocess
import tempfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from vllm_vitals.gpu import amd_source

SOURCE = Path(__file__).with_name("amdsmi.c")
NAME = "libamd_smi.so"
COMPILER = shutil.which("cc")
NOT_SUPPORTED, TIMEOUT, NO_PERM, IO, BUSY = "!2", "!8", "!10", "!12", "!30"
NOT_FOUND, DRIVER_NOT_LOADED, UNEXPECTED_DATA = "!31", "!34", "!43"
STRUCTURES = (
    "bdf", "enumeration_info", "asic_info", "board_info", "kfd_info", "driver_info", "vbios_info", "gpu_metrics",
    "engine_usage", "power_info", "power_cap_info", "clk_info", "error_count", "proc_info", "retired_page_record",
)  # fmt: skip

GIB = 2**30
HOTSPOT, VRAM, CRITICAL, EMERGENCY = 1, 2, 5, 7
GFX, MEM = 0, 4
MI300X: dict[str, Any] = {
    "name": "AMD Instinct MI300X", "serial": "692251001124", "driver": "6.14.14", "vbios": "022.040.003.043.000001",
    "partition": 0, "mode": "SPX", "total": 192 * GIB, "used": 150 * GIB, "metrics": 1, "power_cap": 750_000_000,
    "metrics.average_gfx_activity": 87, "metrics.average_umc_activity": 40, "metrics.current_socket_power": 650,
    "metrics.temperature_hotspot": 66, "metrics.temperature_mem": 58, "energy": 1_000_000, "resolution": "15.25",
    f"temperature.{HOTSPOT}.{CRITICAL}": 100, f"temperature.{HOTSPOT}.{EMERGENCY}": 105,
    f"temperature.{VRAM}.{CRITICAL}": 95, f"temperature.{VRAM}.{EMERGENCY}": 97, f"clock.{GFX}": 2104, f"clock.{MEM}": 1300,
    "metrics.xgmi_read_data_acc.0": 1000, "metrics.xgmi_read_data_acc.1": 2000, "metrics.xgmi_write_data_acc.0": 5000,
    "metrics.accumulation_counter": 100_000, "metrics.ppt_residency_acc": 700, "metrics.prochot_residency_acc": 0,
    "metrics.socket_thm_residency_acc": 30, "metrics.vr_thm_residency_acc": 0, "metrics.hbm_thm_residency_acc": 0,
    "ecc": "3 0 1", "processes": f"{os.getpid()}:5000 1:7000", "pages": "none",
}  # fmt: skip
"""All that a device of today says, in AMD SMI's units."""


class Driver:
    """What the stub says, by the keys that `amdsmi.c` explains."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "driver.txt"
        self.calls = folder / "calls.txt"
        self.values: dict[str, Any] = {"count": 0}
        self.variables = {"AMDSMI_STUB": str(self.file), "AMDSMI_STUB_CALLS": str(self.calls)}
        self.say({})

    def say(self, values: dict[str, Any]) -> None:
        """Let it say something else; `None` takes away what it said."""
        self.values.update(values)
        lines = [f"{key} {value}\n" for key, value in self.values.items() if value is not None]
        fresh = self.file.with_suffix(".new")
        fresh.write_text("".join(lines), encoding="ascii")
        fresh.replace(self.file)

    def plug(self, index: int, **more: Any) -> None:
        """Put an MI300X in, with other values than its usual ones; a dot in a name is written as two underscores."""
        letter = "abcdefgh"[index]
        values = {
            **MI300X, "uuid": f"{letter * 8}-0000-1000-8000-{letter * 12}", "hip_uuid": f"GPU-{letter * 16}",
            "hip_id": index, "bus": f"0000:{index + 5:02x}:00.0",
            **{key.replace("__", "."): value for key, value in more.items()},
        }  # fmt: skip
        self.say({f"{index}.{key}": value for key, value in values.items()})
        self.say({"count": max(self.values["count"], index + 1)})

    def opened(self) -> tuple[int, int]:
        """Return how often the library was initialised, and shut down."""
        calls = self.calls.read_text(encoding="ascii") if self.calls.exists() else ""
        return calls.count("i"), calls.count("s")


def wrapper() -> Path:
    """Return the file in which amdsmi names the functions that it takes from the library; skip where it is not."""
    spec = find_spec("amdsmi")
    if spec is None or spec.origin is None:
        pytest.skip("amdsmi is not installed: AMD's GPUs are NOT tested")
    return Path(spec.origin).with_name("amdsmi_wrapper.py")


def build(root: Path, without: str = "") -> Path:
    """Build the library in a folder as ROCm has it; a test is skipped where there is no compiler."""
    if COMPILER is None:
        pytest.skip("there is no C compiler here (cc) to build the stub of AMD SMI with: AMD's GPUs are NOT tested")
    wanted = set(re.findall(r"_libraries\['libamd_smi\.so'\]\.(\w+)", wrapper().read_text(encoding="utf-8")))
    written = SOURCE.read_text(encoding="ascii")
    rest = sorted(name for name in wanted if f" {name}(" not in written and name != without)
    path, generated = root / "lib" / NAME, root / "whole.c"
    path.parent.mkdir()
    lines = [f'#include "{SOURCE}"', *(f"Status {name}(void) {{ return NOT_SUPPORTED; }}" for name in rest)]
    generated.write_text("\n".join([*lines, ""]), encoding="utf-8")
    options = ["-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([COMPILER, *options, "-o", str(path), str(generated)], check=True)
    return path


@cache
def load() -> ctypes.CDLL:
    """Load the library into this process by way of amdsmi, which looks for it when it is imported."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        path = build(Path(folder))
        patch.setenv("ROCM_HOME", folder)
        import amdsmi

        assert amdsmi.amdsmi_wrapper.location == str(path)
        return ctypes.CDLL(str(path))


@cache
def rocm() -> Path:
    """Return a folder that a process can have as its `ROCM_HOME`."""
    folder = Path(tempfile.mkdtemp(prefix="rocm-"))
    atexit.register(shutil.rmtree, folder)
    build(folder)
    return folder


def driver(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    """Return a driver without devices, in this process and in those that it starts."""
    load()
    made = Driver(folder)
    monkeypatch.setenv("ROCM_HOME", str(rocm()))
    monkeypatch.setattr(amd_source, "DRIVER", (made.file,))
    for name, value in made.variables.items():
        monkeypatch.setenv(name, value)
    return made
