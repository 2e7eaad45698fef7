"""Every test, each in an environment of its own.

`make test` runs the sessions tagged `test`, `make test-more` those tagged `more`, and `make test-all` everything.
"""

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
RESULTS = ROOT / ".cache" / "results"
"""Where each session leaves what its tests came to, for `tests/summary.py`."""
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
OLD = PYTHONS[:2]
TEST, MORE, ALL = "test", "more", "all"
nox.options.tags = [TEST]
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_missing_interpreters = True

PARALLEL = ("-n", "2", "--dist", "worksteal")


def find(version: str) -> str | None:
    """Return an interpreter of a Python version that really runs (a version manager's shim may not)."""
    managed = sorted(Path.home().glob(f".pyenv/versions/{version}*/bin/python{version}"))
    for candidate in (shutil.which(f"python{version}"), *map(str, managed)):
        if candidate and subprocess.run([candidate, "-c", ""], capture_output=True, check=False).returncode == 0:
            return candidate
    return None


FOUND = {version: path for version in PYTHONS if (path := find(version))} or {"this": sys.executable}
NEWEST = list(FOUND)[-1]
OLDEST = next((FOUND[version] for version in OLD if version in FOUND), None)


def pytest(session: nox.Session, *arguments: str, python: str = "python") -> None:
    """Run tests, and leave their results for the summary."""
    result = RESULTS / f"{session.name}.xml"
    session.run(python, "-m", "pytest", f"--junitxml={result}", *arguments, *session.posargs)


@nox.session(python=FOUND[NEWEST], tags=[TEST, ALL])
def lint(session: nox.Session) -> None:
    """Check style and types."""
    session.install(
        "-e",
        ".[preview]",
        "import-linter>=2.5",
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
    session.run("lint-imports", "--no-cache")


def _unit(session: nox.Session) -> None:
    session.install("-e", ".", "-r", "tests/requirements.txt")
    pytest(session, *PARALLEL, "tests/unit")


for version, path in FOUND.items():
    _unit.__doc__ = f"Run the unit tests on Python {version}."
    nox.session(_unit, python=path, name=f"unit-{version}", tags=[TEST if version == NEWEST else MORE, ALL])


def _oldest(session: nox.Session, *chosen: str) -> None:
    if OLDEST is None:
        session.skip(f"the oldest dependencies have wheels for Python {' and '.join(OLD)} only; none is here")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = [re.sub(r">=", "==", dependency) for dependency in project["dependencies"]]
    session.install(*pins, "-r", "tests/requirements.txt")
    session.install("--no-deps", "-e", ".")
    pytest(session, *PARALLEL, "tests/unit", *chosen)


@nox.session(python=OLDEST, tags=[TEST])
def oldest(session: nox.Session) -> None:
    """Run what depends on versions on the oldest Python, with the oldest dependencies that the package allows."""
    _oldest(session, "-m", "versions")


@nox.session(python=OLDEST, name="oldest-all", tags=[MORE, ALL])
def oldest_all(session: nox.Session) -> None:
    """Run all unit tests on the oldest Python, with the oldest dependencies that the package allows."""
    _oldest(session)


@nox.session(python=FOUND[NEWEST], tags=[TEST, ALL])
def hostile(session: nox.Session) -> None:
    """Attack the public surfaces: sockets, files, receivers, signals."""
    session.install("-e", ".", "-r", "tests/requirements.txt")
    pytest(session, *PARALLEL, "tests/hostile")


@nox.session(python=FOUND[NEWEST], tags=[MORE, ALL])
def integration(session: nox.Session) -> None:
    """Test real processes together: forks, takeovers, ends, stand-ins for GPU drivers, a simulated year."""
    session.install("-e", ".", "-r", "tests/requirements.txt")
    pytest(session, *PARALLEL, "tests/integration")


def _compat(session: nox.Session, releases: str) -> None:
    session.install("-e", ".", "-r", "tests/requirements.txt")
    pytest(session, *PARALLEL, "tests/compat", f"--releases={releases}")


@nox.session(python=FOUND[NEWEST], tags=[TEST])
def compat(session: nox.Session) -> None:
    """Read the stats classes of a few vLLM releases, taken out of their wheels."""
    _compat(session, "few")


@nox.session(python=FOUND[NEWEST], name="compat-all", tags=[MORE, ALL])
def compat_all(session: nox.Session) -> None:
    """Read the stats classes of every vLLM release, taken out of their wheels."""
    _compat(session, "all")


@nox.session(python=FOUND[NEWEST], tags=[TEST, ALL])
def boards(session: nox.Session) -> None:
    """Check the dashboards against the catalogue, PromQL and Grafana's own schemas, and previews of them."""
    if NEWEST == "3.10":
        session.skip("grafana-foundation-sdk needs Python 3.11 or newer; none is here")
    session.install("-e", ".[preview]", "-r", "tests/boards/requirements.txt")
    pytest(session, *PARALLEL, "tests/boards")


@nox.session(python=FOUND[NEWEST], tags=[TEST, ALL])
def rules(session: nox.Session) -> None:
    """Evaluate recording rules and alerts with promtool."""
    session.install("-e", ".", "-r", "tests/rules/requirements.txt")
    pytest(session, *PARALLEL, "tests/rules")


@nox.session(python=FOUND[NEWEST], tags=[TEST, ALL])
def helm(session: nox.Session) -> None:
    """Render the chart with real Helms, and check what comes out and what else `deploy/` holds."""
    session.install("-e", ".", "-r", "tests/helm/requirements.txt")
    # cloudcoil brings a plugin of its own for pytest, which wants more than is here.
    pytest(session, *PARALLEL, "-p", "no:cloudcoil", "tests/helm")


def _live(session: nox.Session, *chosen: str) -> None:
    session.run(sys.executable, "tests/live/bootstrap.py")
    pytest(session, *chosen, python=".venv-vllm/bin/python")


@nox.session(venv_backend="none", tags=[TEST, ALL])
def smoke(session: nox.Session) -> None:
    """Run one real vLLM with the plugin, a real Prometheus that scrapes it and a real OTLP receiver."""
    _live(session, "tests/live/smoke/test_one_engine.py")


@nox.session(venv_backend="none", tags=[MORE, ALL])
def live(session: nox.Session) -> None:
    """Run everything else that a real vLLM can show."""
    _live(session, "tests/live", "--ignore=tests/live/smoke/test_one_engine.py")


@nox.session(python=FOUND[NEWEST])
def fuzz(session: nox.Session) -> None:
    """Send a million mutated frames over the wire, as the unit tests do where they try everything."""
    session.install("-e", ".", "-r", "tests/requirements.txt")
    pytest(session, "tests/unit/transport/test_fuzz.py", "--effort=all")


@nox.session(venv_backend="none", tags=[ALL])
def releases(session: nox.Session) -> None:
    """Run the smoke test on real engines of older vLLM releases, one after the other."""
    session.run(sys.executable, "-m", "tests.live.releases", *session.posargs)
