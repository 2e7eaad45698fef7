"""`vllm-vitals doctor` as a command: exit codes, JSON, what a person reads."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import vllm_vitals
from vllm_vitals.cli import app
from vllm_vitals.cli.doctor import CHECKS, endpoint
from vllm_vitals.cli.doctor import command as doctor
from vllm_vitals.cli.doctor.finding import Status, fail, ok, skip, warn


@pytest.fixture
def only(monkeypatch):
    """Return what replaces the checks by some that find what it is given."""

    def use(**checks):
        monkeypatch.setattr(
            doctor, "CHECKS", {name: lambda _, found=found: iter(found) for name, found in checks.items()}
        )

    return use


def run(*words, **environ):
    return CliRunner().invoke(app, ["doctor", *words], env={"COLUMNS": "160", **environ})


@pytest.mark.parametrize(
    ("found", "code"),
    [
        ([ok("a")], 0),
        ([warn("a", "b")], 0),
        ([skip("a")], 0),
        ([fail("a", "b")], 1),
        ([ok("a"), fail("b"), ok("c")], 1),
    ],
)
def test_exit_code(only, found, code):
    only(one=found)
    assert run().exit_code == code
    assert run("--json").exit_code == code


def test_json(only):
    only(one=[ok("fine"), warn("[so] so", "do")], two=[fail("bad", "do that")])
    assert json.loads(run("--json").output) == {
        "version": vllm_vitals.__version__,
        "ok": False,
        "counts": {"ok": 1, "warn": 1, "fail": 1, "skip": 0},
        "checks": [
            {"id": "one", "status": "ok", "found": "fine", "advice": ""},
            {"id": "one", "status": "warn", "found": "[so] so", "advice": "do"},
            {"id": "two", "status": "fail", "found": "bad", "advice": "do that"},
        ],
    }


def test_text(only):
    only(one=[ok("fine [as] it is")], two=[warn("so so", "look at it")], three=[fail("bad", "do that")])
    lines = [line.rstrip() for line in run().output.splitlines()]
    assert lines == [
        "ok    one    fine [as] it is",
        "warn  two    so so",
        "               look at it",
        "FAIL  three  bad",
        "               do that",
        "",
        "Not ready. Failed: three. Follow the advice above before vLLM starts. Check the warnings too: two.",
    ]


def test_ready_tells_where_the_metrics_will_be(only):
    only(one=[ok("fine")])
    environ = {"VITALS_PROMETHEUS__HOST": "::1", "VITALS_PROMETHEUS__PORT": "9500"}
    assert (
        run(**environ).output.splitlines()[-1] == "Ready: nothing failed. Metrics will be at http://[::1]:9500/metrics"
    )
    assert run("--", "--headless").output.splitlines()[-1] == "Ready: nothing failed."
    assert run(VITALS_WIRE__SIDECAR="/run/vitals/s.sock").output.splitlines()[-1] == "Ready: nothing failed."


def test_a_check_that_breaks_does_not_hide_the_others(monkeypatch):
    def broken(_):
        yield ok("so far")
        raise RuntimeError("oops")

    monkeypatch.setattr(doctor, "CHECKS", {"broken": broken, "next": lambda _: iter([ok("told")])})
    findings = doctor.examine({}).findings
    assert [(finding.id, finding.status) for finding in findings] == [
        ("broken", Status.OK),
        ("broken", Status.FAIL),
        ("next", Status.OK),
    ]
    assert "RuntimeError: oops" in findings[1].found


def test_every_check_tells_something_on_this_machine():
    told = json.loads(run("--json", VITALS_PROMETHEUS__PORT="0").output)["checks"]
    assert list(dict.fromkeys(each["id"] for each in told)) == list(CHECKS)
    assert not [each for each in told if "the check itself failed" in each["found"]]


def test_what_fails_or_warns_says_what_to_do():
    environ = {"VITALS_PROMETHEUS__PORT": "-1", "VLLM_PLUGINS": "a", "VLLM_USE_RUST_FRONTEND": "1", "VITALS_NOPE": "1"}
    result = run("--json", "--", "vllm", "serve", "-asc", "2", "--disable-log-stats", **environ)
    told = json.loads(result.output)["checks"]
    assert result.exit_code == 1
    assert {"vllm-plugins", "frontend", "settings"} <= {each["id"] for each in told if each["status"] == "fail"}
    assert all(each["advice"] for each in told if each["status"] in ("warn", "fail"))


def test_port_option_wins(monkeypatch):
    monkeypatch.setattr(doctor, "CHECKS", {"port": CHECKS["port"]})
    port = next(number for number in range(22000, 30000) if endpoint.listen("127.0.0.1", number) is None)
    result = run("--port", str(port), VITALS_PROMETHEUS__PORT="1")
    assert f"port {port} of localhost" in result.output
    assert run("--port", "70000").exit_code == 2


@pytest.mark.parametrize("words", [["--", "vllm", "serve", "m", "--headless"], ["vllm", "serve", "m", "--headless"]])
def test_command_line_with_or_without_dashes(monkeypatch, words):
    monkeypatch.setattr(doctor, "CHECKS", {"serve": CHECKS["serve"]})
    result = run(*words)
    assert (result.exit_code, "--headless: this node runs engines only" in result.output) == (0, True)


def test_as_a_process_it_leaves_vllm_alone():
    code = (
        "import sys; from vllm_vitals.cli import app\n"
        "try: app(['doctor', '--json'])\n"
        "finally: assert 'torch' not in sys.modules and 'vllm' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1)
    assert done.stderr == ""
    assert json.loads(done.stdout)["version"] == vllm_vitals.__version__
