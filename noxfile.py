"""Every test, each in an environment of its own. `make test` runs them all."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import nox

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
OLD = PYTHONS[:2]
nox.options.sessions = ["lint", "unit", "oldest", "compat", "boards", "rules", "helm", "live"]
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_missing_interpreters = True


def find(version: str) -> str | None:
    """Return an interpreter of a Python version that really runs (a version manager's shim may not)."""
    managed = sorted(Path.home().glob(f".pyenv/versions/{version}*/bin/python{version}"))
    for candidate in (shutil.which(f"python{version}"), *map(str, managed)):
        if candidate and subprocess.run([candidate, "-c", ""], capture_output=True, check=False).returncode == 0:
            return candidate
    return None


FOUND = {version: path for version in PYTHONS if (path := find(version))} or {"this": sys.executable}
NEWEST = list(FOUND.values())[-1]
SLOW = tuple(
    f"--ignore=tests/unit/test_{name}.py"
    for name in ("deploy_runs", "gpu_amd_process", "otlp_shutdown", "takeover", "year")
)
"""What takes long without computing anything that depends on the Python version."""
AT_ONCE = ("-n", "2", "--dist", "loadfile")
OLDEST = next((FOUND[version] for version in OLD if version in FOUND), None)


@nox.session(python=NEWEST)
def lint(session: nox.Session) -> None:
    """Check style and types."""
    session.install(
        "-e",
        ".[preview]",
        "mypy>=1.11",
        "ruff>=0.6",
        "nox",
        "types-PyYAML",
        "types-grpcio",
        "types-protobuf",
        "types-requests",
    )
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("mypy")


@nox.session(python=list(FOUND.values()))
def unit(session: nox.Session) -> None:
    """Run the unit tests on every Python that is found; what takes long, on one."""
    session.install("-e", ".", "-r", "tests/requirements.txt")
    slow = () if session.python == NEWEST else SLOW
    session.run("pytest", *AT_ONCE, "tests/unit", *slow, *session.posargs)


@nox.session(python=NEWEST)
def fuzz(session: nox.Session) -> None:
    """Send a million mutated frames over the wire; the unit tests send some thousands."""
    session.install("-e", ".", "-r", "tests/requirements.txt")
    session.run("pytest", "tests/unit/test_wire_fuzz.py", *session.posargs, env={"VITALS_WIRE_FUZZ": "1000000"})


@nox.session(python=OLDEST)
def oldest(session: nox.Session) -> None:
    """Run the unit tests with the oldest dependencies that the package allows."""
    if OLDEST is None:
        session.skip(f"NOT RUN: the oldest dependencies have wheels for Python {' and '.join(OLD)} only; none is here")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = [re.sub(r">=", "==", dependency) for dependency in project["dependencies"]]
    session.install(*pins, "-r", "tests/requirements.txt")
    session.install("--no-deps", "-e", ".")
    session.run("pytest", *AT_ONCE, "tests/unit", *SLOW, *session.posargs)


@nox.session(python=NEWEST)
def compat(session: nox.Session) -> None:
    """Read the stats classes of many vLLM releases, taken out of their wheels."""
    session.install("-e", ".", "-r", "tests/requirements.txt")
    session.run("pytest", "tests/compat", *session.posargs)


@nox.session(python=NEWEST)
def boards(session: nox.Session) -> None:
    """Check the dashboards against the catalogue, PromQL and Grafana's own schemas, and previews of them."""
    if FOUND.get("3.10") == NEWEST:
        session.skip("NOT RUN: grafana-foundation-sdk needs Python 3.11 or newer; none is here")
    session.install("-e", ".[preview]", "-r", "tests/boards/requirements.txt")
    session.run("pytest", "tests/boards", *session.posargs)


@nox.session(python=NEWEST)
def rules(session: nox.Session) -> None:
    """Evaluate recording rules and alerts with promtool."""
    session.install("-e", ".", "-r", "tests/rules/requirements.txt")
    session.run("pytest", "tests/rules", *session.posargs)


@nox.session(python=NEWEST)
def helm(session: nox.Session) -> None:
    """Render the chart with real Helms, and check what comes out and what else `deploy/` holds."""
    session.install("-e", ".", "-r", "tests/helm/requirements.txt")
    # cloudcoil brings a plugin of its own for pytest, which wants more than is here.
    session.run("pytest", "-p", "no:cloudcoil", "tests/helm", *session.posargs)


@nox.session(venv_backend="none")
def live(session: nox.Session) -> None:
    """Run against a real vLLM, and a real Prometheus that scrapes it."""
    session.run(sys.executable, "tests/live/bootstrap.py")
    session.run(".venv-vllm/bin/python", "-m", "pytest", "tests/live", *session.posargs)
