"""vLLM's environment as its image has it: without this project. And what the project's image has for it."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

from tests.live.bootstrap import CACHE, REPO

DOCKER = REPO / "deploy" / "docker"
OURS = ("vllm_vitals", "_editable_impl_vllm_vitals", "nvidia_ml_py", "pynvml", "__pycache__")
"""What begins so is left out: the project, and a dependency that vLLM's image has not."""
VLLM = """\
#!{python}
import sys

from vllm.entrypoints.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
"""
"""The command that pip makes of vLLM's entry point."""


def bare_vllm(home: Path) -> Path:
    """Return the Python of an environment that has all of this one's packages but ours."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    python = home / "bin" / "python"
    (packages,) = home.glob("lib/python*/site-packages")
    for each in Path(sysconfig.get_path("purelib")).iterdir():
        if not each.name.startswith(OURS):
            (packages / each.name).symlink_to(each)
    command = home / "bin" / "vllm"
    command.write_text(VLLM.format(python=python))
    command.chmod(0o755)
    return python


def package(home: Path) -> Path:
    """Return what the image holds to be injected, made by the script that makes it there."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", home, REPO], check=True)
    (wheel,) = home.glob("vllm_vitals-*.whl")
    directory = home / "package"
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    subprocess.run(
        [DOCKER / "package.sh", wheel, directory, DOCKER / "spare.txt", version],
        env={**os.environ, "PYTHON": sys.executable, "PIP_CACHE_DIR": str(CACHE / "pip")}, check=True,
    )  # fmt: skip
    return directory
