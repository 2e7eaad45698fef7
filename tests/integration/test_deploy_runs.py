"""What `deploy/` offers is run as it stands there, but for paths and ports: its commands, environments and checks."""

import configparser
import json
import os
import re
import shlex
import signal
import stat
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.unit.otlp import HOST, free_port
from tests.unit.project.test_deploy import COMPOSE, SETTINGS, UNIT
from tests.unit.wire import short_directory
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
COMMAND = Path(sys.executable).with_name("vllm-vitals")
RUN = "/run/vllm-vitals"
PORT = "9464"
STEPS, TOKENS = 5, 3
SERVE = f"""
import sys
from types import SimpleNamespace
from tests.unit.builders import iteration_stats, request_stats
from tests.unit.fake_vllm import FakeVllm

vllm = FakeVllm()
sys.modules.update(vllm.modules)
(logger,) = vllm.start()
for _ in range({STEPS}):
    iteration = iteration_stats(num_generation_tokens={TOKENS}, finished_requests=[request_stats()])
    logger.record(SimpleNamespace(num_running_reqs=0), iteration, None, 0)
sys.stdin.read()
"""
CONFINED = """
import ctypes, os, sys
prctl, no_new_privileges, memory_deny_write_execute = ctypes.CDLL(None).prctl, 38, 65
if prctl(no_new_privileges, 1, 0, 0, 0):
    sys.exit("NoNewPrivileges cannot be had")
print("confined" if prctl(memory_deny_write_execute, 1, 0, 0, 0) == 0 else "kernel before 6.3", flush=True)
os.umask(int(sys.argv[1], 8))
os.execv(sys.argv[2], sys.argv[2:])
"""
"""Does to a process what the unit asks for and no privilege is needed for, then becomes the command."""


class Running:
    """A sidecar that was started, and its port."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], port: str, log: Path) -> None:
        self.log = log
        self._url = f"http://{HOST}:{port}"
        with log.open("w") as said:
            self.process = subprocess.Popen(command, env=dict(env), cwd="/", stdout=said, stderr=said)

    def wait(self) -> None:
        try:
            wait_until(lambda: self.get("/readyz") == "ok\n", 30)
        except AssertionError:
            pytest.fail(self.log.read_text())

    def get(self, path: str) -> str:
        try:
            with urllib.request.urlopen(f"{self._url}{path}", timeout=5) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""

    def shown(self) -> dict[str, float]:
        families = text_string_to_metric_families(self.get("/metrics"))
        return {sample.name: sample.value for family in families for sample in family.samples}

    def takes_in(self, environment: Mapping[str, str]) -> None:
        """Let a vLLM with an environment serve; its steps must arrive."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("VITALS_", "OTEL_"))}
        command = [sys.executable, "-c", SERVE]
        with subprocess.Popen(command, env={**clean, **environment}, cwd=ROOT, stdin=subprocess.PIPE) as vllm:
            try:
                wait_until(lambda: self.shown().get("vitals_steps_total") == STEPS, 60)
                wait_until(lambda: self.shown().get("vllm_tokens_generation_total") == STEPS * TOKENS)
            finally:
                vllm.kill()

    def ends_within(self, seconds: float) -> int:
        """Ask it to end, and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)


@contextmanager
def running(command: Sequence[str], env: Mapping[str, str], port: str, log: Path) -> Iterator[Running]:
    made = Running(command, env, port, log)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.wait(30)


class Here:
    """A directory and a port in place of those that a file names."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = str(free_port())

    def text(self, path: Path) -> str:
        return path.read_text().replace(RUN, str(self.directory)).replace(PORT, self.port)


@pytest.fixture
def here() -> Iterator[Here]:
    """Give a place where a socket's path is short enough."""
    with short_directory() as directory:
        yield Here(directory / "r")


# --- systemd


class Unit:
    """The unit, and how systemd would start it."""

    def __init__(self, here: Here) -> None:
        self._text = here.text(UNIT)
        parser = configparser.RawConfigParser(strict=False)
        parser.optionxform = str  # type: ignore[assignment,method-assign]
        parser.read_string(self._text)
        self.service = parser["Service"]
        self._settings = here.text(SETTINGS)

    @property
    def command(self) -> list[str]:
        program, *words = shlex.split(self.service["ExecStart"])
        assert Path(program).name == COMMAND.name
        return [sys.executable, "-c", CONFINED, self.service["UMask"], str(COMMAND), *words]

    @property
    def environment(self) -> dict[str, str]:
        """Return all that there is: what a shell has set does not reach a service."""
        return {"PATH": "/usr/bin:/bin", **dict(re.findall(r"^([A-Z_]+)=(.*)$", self._settings, re.MULTILINE))}

    @property
    def of_vllm(self) -> dict[str, str]:
        """Return what it says that vLLM's own unit needs."""
        return dict(re.findall(r"^#\s+Environment=(\w+)=(.*)$", self._text, re.MULTILINE))

    def prepare(self, directory: Path) -> None:
        directory.mkdir(mode=int(self.service["RuntimeDirectoryMode"], 8))


def test_the_unit_runs(here: Here, tmp_path: Path) -> None:
    unit = Unit(here)
    unit.prepare(here.directory)
    with running(unit.command, unit.environment, here.port, tmp_path / "log") as sidecar:
        sidecar.wait()
        (socket,) = here.directory.iterdir()
        assert stat.S_IMODE(socket.lstat().st_mode) == 0o600
        assert unit.of_vllm == {"VITALS_WIRE__SIDECAR": str(socket)}
        sidecar.takes_in(unit.of_vllm)
        assert sidecar.ends_within(float(unit.service["TimeoutStopSec"])) == 0
        assert list(here.directory.iterdir()) == []
    log = sidecar.log.read_text()
    assert "ERROR" not in log
    if "kernel before 6.3" in log:
        pytest.skip("NOT RUN: this kernel cannot refuse memory that is both written to and executed")
    assert log.startswith("confined\n")


def test_the_unit_stays_down_when_its_settings_are_wrong(here: Here, tmp_path: Path) -> None:
    unit = Unit(here)
    unit.prepare(here.directory)
    wrong = {**unit.environment, "OTEL_EXPORTER_PROMETHEUS_PORT": "many"}
    with running(unit.command, wrong, here.port, tmp_path / "log") as sidecar:
        assert sidecar.process.wait(30) == int(unit.service["RestartPreventExitStatus"])
    assert "OTEL_EXPORTER_PROMETHEUS_PORT" in sidecar.log.read_text()


# --- Compose


def test_the_compose_files_keep_to_the_specification(tmp_path: Path) -> None:
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    files = list(COMPOSE.parent.glob("*.yaml"))
    assert COMPOSE in files
    done = subprocess.run([*check, *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    wrong = tmp_path / "compose.yaml"
    wrong.write_text(COMPOSE.read_text().replace("healthcheck:", "healthchecks:"))
    assert subprocess.run([*check, wrong], capture_output=True, check=False).returncode == 1


def test_the_services_of_the_compose_file_run(here: Here, tmp_path: Path) -> None:
    services: dict[str, Any] = yaml.safe_load(here.text(COMPOSE))["services"]
    vllm, sidecar = services["vllm"], services["sidecar"]
    (entrypoint,) = re.findall(r"^ENTRYPOINT (.*)$", sidecar["build"]["dockerfile_inline"], re.MULTILINE)
    assert json.loads(entrypoint) == [COMMAND.name]
    kind, program, *words = sidecar["healthcheck"]["test"]
    assert (kind, program) == ("CMD", "python")
    check = [sys.executable, *words]
    here.directory.mkdir(mode=0o700)
    bare = {"PATH": "/usr/bin:/bin"}
    with running(
        [str(COMMAND), *sidecar["command"]], bare | sidecar["environment"], here.port, tmp_path / "log"
    ) as started:
        started.wait()
        assert subprocess.run(check, env=bare, check=False, timeout=30).returncode == 0
        started.takes_in(vllm["environment"])
        assert started.ends_within(float(sidecar["stop_grace_period"].removesuffix("s"))) == 0
        assert subprocess.run(check, env=bare, capture_output=True, check=False, timeout=30).returncode == 1
    assert "ERROR" not in started.log.read_text()
