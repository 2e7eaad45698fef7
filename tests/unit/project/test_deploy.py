"""What `deploy/` offers is what the product takes: its settings, its command line, the rules of its socket."""

import configparser
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from vllm_vitals._util.directory import LONGEST_PATH
from vllm_vitals.cli import app
from vllm_vitals.config.load import Loaded, load
from vllm_vitals.config.otel_env import SWITCHES, VARIABLES

ROOT = Path(__file__).parents[3]
COMPOSE = ROOT / "deploy" / "compose" / "compose.yaml"
SYSTEMD = ROOT / "deploy" / "systemd"
UNIT = SYSTEMD / "vllm-vitals-sidecar.service"
SETTINGS = SYSTEMD / "vllm-vitals-sidecar.env"
PAGE = ROOT / "docs" / "processes.md"
STANDARD = {name for each in VARIABLES for name in each.names} | set(SWITCHES)
MOUNT = "/run/vllm-vitals"


def loaded(variables: Mapping[str, Any]) -> Loaded:
    """Return the settings of some variables, each of which must be one that counts."""
    assert all(isinstance(value, str) for value in variables.values()), "YAML takes a bare number for one"
    assert {name for name in variables if name.startswith("OTEL_")} <= STANDARD
    found = load(variables)
    assert not found.warnings
    return found


def commented(text: str, assign: str) -> dict[str, str]:
    """Return the variables that are offered in comments."""
    found = re.findall(rf"^\s*# ?((?:VITALS|OTEL)_\w+){assign}(.+)$", text, re.MULTILINE)
    return dict(found)


def sidecar_options(words: list[str]) -> dict[str, str]:
    """Return the options of a `sidecar` command, all of which the command line must have."""
    command = typer.main.get_command(app).commands[words[0]]  # type: ignore[attr-defined]
    assert words[0] == "sidecar"
    context = command.make_context("sidecar", words[1:])
    return {name: str(value) for name, value in context.params.items() if value is not None}


@pytest.fixture
def services() -> Any:
    return yaml.safe_load(COMPOSE.read_text())["services"]


@pytest.fixture
def unit() -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNIT)
    return parser


def test_compose_settings_are_valid(services: Any) -> None:
    for service in services.values():
        loaded(service["environment"])
    offered = commented(COMPOSE.read_text(), ": ")
    assert offered
    loaded(offered)


def test_compose_services_meet(services: Any) -> None:
    vllm, sidecar = services["vllm"], services["sidecar"]
    socket = Path(sidecar_options(sidecar["command"])["socket"])
    assert loaded(vllm["environment"]).settings.wire.sidecar == socket
    assert vllm["user"] == sidecar["user"]
    assert f"wire:{socket.parent}" in vllm["volumes"]
    assert f"wire:{socket.parent}" in sidecar["volumes"]
    volume = yaml.safe_load(COMPOSE.read_text())["volumes"]["wire"]["driver_opts"]["o"]
    assert volume == f"uid={vllm['user'].partition(':')[0]},mode=0700"


def test_compose_endpoint_can_be_reached(services: Any) -> None:
    sidecar = services["sidecar"]
    settings = loaded(sidecar["environment"]).settings.prometheus
    assert settings.host == "0.0.0.0"  # noqa: S104 - it is the container's own
    assert sidecar["ports"] == [f"{settings.port}:{settings.port}"]
    assert f"http://localhost:{settings.port}/readyz" in sidecar["healthcheck"]["test"][-1]


def test_unit_starts_what_there_is(unit: configparser.RawConfigParser) -> None:
    program, *words = unit["Service"]["ExecStart"].split()
    assert Path(program).name == "vllm-vitals"
    socket = Path(sidecar_options(words)["socket"])
    assert socket.parent == Path("/run", unit["Service"]["RuntimeDirectory"])
    assert f"Environment=VITALS_WIRE__SIDECAR={socket}\n" in UNIT.read_text()


def test_unit_keeps_the_rules_of_the_socket(unit: configparser.RawConfigParser) -> None:
    assert unit["Service"]["RuntimeDirectoryMode"] == "0700"
    assert unit["Service"]["User"]
    assert "DynamicUser" not in unit["Service"]


def test_settings_of_the_unit_are_valid(unit: configparser.RawConfigParser) -> None:
    text = SETTINGS.read_text()
    assert unit["Service"]["EnvironmentFile"] in text
    given = dict(re.findall(r"^([A-Z_]+)=(.*)$", text, re.MULTILINE))
    offered = commented(text, "=")
    assert given
    assert offered
    loaded(given)
    loaded({**given, **offered})


def test_systemd_finds_no_fault_with_the_unit(tmp_path: Path) -> None:
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("NOT RUN: there is no systemd-analyze here to verify the unit with")
    program = tmp_path / "vllm-vitals"  # it must be there, and on this machine it is elsewhere
    program.touch(mode=0o755)
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("=/opt/vllm-vitals/bin/vllm-vitals", f"={program}"))
    done = subprocess.run([verify, "verify", copy], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_pod_of_the_page_is_valid() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    spec = yaml.safe_load(text)["spec"]
    (sidecar,), (vllm,) = spec["initContainers"], spec["containers"]
    collects, sends = (
        loaded({each["name"]: each["value"] for each in container["env"]}).settings for container in (sidecar, vllm)
    )
    socket = Path(sidecar_options(sidecar["command"][1:])["socket"])
    assert sends.wire.sidecar == socket
    assert len(str(socket)) <= LONGEST_PATH
    assert sidecar["volumeMounts"] == vllm["volumeMounts"] == [{"name": "wire", "mountPath": MOUNT}]
    assert socket.parent.parent == Path(MOUNT), "an emptyDir is open to everybody, what is made below it is not"
    assert sidecar["ports"][0]["containerPort"] == collects.prometheus.port
