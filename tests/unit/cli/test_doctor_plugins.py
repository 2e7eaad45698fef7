"""Doctor: entry points, VLLM_PLUGINS and the Rust front end."""

import sys
from pathlib import Path

import pytest

from vllm_vitals._util import documents
from vllm_vitals.cli.doctor import CHECKS
from vllm_vitals.cli.doctor.finding import Status
from vllm_vitals.cli.doctor.launch import Launch

ROOT = Path(__file__).parents[3]
OURS = "vitals_prometheus"
PUSH = "vitals_otlp"
GROUP = "[vllm.stat_logger_plugins]"


def look(check, environ=None):
    return list(CHECKS[check](Launch(environ or {})))


@pytest.fixture
def distribution(tmp_path, monkeypatch):
    """Return what puts a distribution with entry points before all others."""

    def put(name, entry_points):
        metadata = tmp_path / f"{name.replace('-', '_')}-9.9.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.9\n")
        (metadata / "entry_points.txt").write_text(f"{GROUP}\n{entry_points}\n")
        monkeypatch.syspath_prepend(tmp_path)

    return put


def test_ours_is_registered_and_vllm_is_not_imported(distribution):
    declared = documents.load(ROOT / "pyproject.toml")["project"]["entry-points"]["vllm.stat_logger_plugins"]
    distribution("vllm-vitals", "\n".join(f"{name} = {target}" for name, target in declared.items()))
    before = set(sys.modules)
    registered = [finding.found for finding in look("plugin") if finding.status is Status.OK]
    assert {f"{name} is registered in vllm.stat_logger_plugins" for name in (OURS, PUSH)} <= set(registered)
    assert not {name for name in set(sys.modules) - before if name.split(".")[0] == "vllm"}


def test_others_are_listed(distribution):
    distribution("other-stats", "other = other_stats:Logger")
    told = look("plugin")[-1]
    assert (told.status, "other (other-stats)" in told.found) == (Status.OK, True)


def test_the_same_name_twice(distribution):
    distribution("impostor", f"{OURS} = impostor:Logger")
    warning = next(finding for finding in look("plugin") if finding.status is Status.WARN)
    assert OURS in warning.found
    assert "impostor" in warning.found
    assert "vllm-vitals" in warning.found


def test_a_target_that_cannot_be_found(distribution):
    distribution("vllm-vitals", f"{OURS} = vllm_vitals.gone.away:Logger")
    finding = look("plugin")[0]
    assert finding.status is Status.FAIL
    assert "vllm_vitals.gone.away:Logger" in finding.found


def test_nothing_is_registered(distribution):
    distribution("vllm-vitals", "")
    finding = look("plugin")[0]
    assert finding.status is Status.FAIL
    assert "Install vllm-vitals" in finding.advice
    assert look("vllm-plugins", {"VLLM_PLUGINS": "a"})[0].status is Status.SKIP


@pytest.mark.parametrize("value", [None, OURS, f"a,{OURS}", f"{OURS},b"])
def test_filter_that_lets_us_through(value):
    (finding,) = look("vllm-plugins", {} if value is None else {"VLLM_PLUGINS": value})
    assert (finding.status, finding.advice) == (Status.OK, "")


def test_filter_without_us():
    (finding,) = look("vllm-plugins", {"VLLM_PLUGINS": "a,b"})
    assert finding.status is Status.FAIL
    assert f'Append ",{OURS}"' in finding.advice
    assert f'VLLM_PLUGINS="a,b,{OURS}"' in finding.advice


@pytest.mark.parametrize("value", [f"a, {OURS}", f"{OURS} ,a", f'"{OURS}",a', f"a,{OURS}\n"])
def test_filter_with_a_blank_or_a_quote(value):
    (finding,) = look("vllm-plugins", {"VLLM_PLUGINS": value})
    assert finding.status is Status.FAIL
    assert "keeps blanks and quotes" in finding.found
    assert 'VLLM_PLUGINS="' in finding.advice
    good = finding.advice.split('"')[1]
    assert set(good.split(",")) == {"a", OURS}


def test_a_blank_in_somebody_elses_name():
    (finding,) = look("vllm-plugins", {"VLLM_PLUGINS": f"{OURS}, b"})
    assert finding.status is Status.WARN
    assert "' b'" in finding.found


@pytest.mark.parametrize(
    ("environ", "listed", "status", "missing"),
    [
        ({}, OURS, Status.OK, ""),
        ({"VITALS_OTLP__ENDPOINT": "http://c"}, f"{OURS},{PUSH}", Status.OK, ""),
        ({"VITALS_OTLP__ENDPOINT": "http://c"}, OURS, Status.FAIL, PUSH),
        ({"VITALS_OTLP__ENDPOINT": "http://c"}, PUSH, Status.WARN, OURS),
        ({"VITALS_OTLP__ENDPOINT": "http://c"}, "a", Status.FAIL, f"{PUSH}, {OURS}"),
        ({"VITALS_OTLP__ENDPOINT": "http://c", "OTEL_SDK_DISABLED": "true"}, OURS, Status.OK, ""),
        ({"VITALS_OTLP__ENDPOINT": "http://c", "VITALS_PROMETHEUS__ENABLED": "false"}, PUSH, Status.OK, ""),
        ({"VITALS_OTLP__INTERVAL": "x"}, OURS, Status.FAIL, PUSH),
    ],
)
def test_a_plugin_with_nothing_to_do_need_not_be_named(environ, listed, status, missing, distribution):
    distribution("vllm-vitals", f"{PUSH} = vllm_vitals.plugin:OtlpVitals\n{OURS} = vllm_vitals.plugin:P")
    (finding,) = look("vllm-plugins", {"VLLM_PLUGINS": listed, **environ})
    assert finding.status is status
    assert not missing or f"does not name {missing}" in finding.found


@pytest.mark.parametrize(
    ("listed", "status"), [(OURS, Status.OK), (PUSH, Status.OK), (f" {PUSH}", Status.FAIL), ("a", Status.FAIL)]
)
def test_with_a_sidecar_one_plugin_is_enough(listed, status, distribution):
    distribution("vllm-vitals", f"{PUSH} = vllm_vitals.plugin:OtlpVitals\n{OURS} = vllm_vitals.plugin:P")
    environ = {
        "VLLM_PLUGINS": listed,
        "VITALS_OTLP__ENDPOINT": "http://c",
        "VITALS_WIRE__SIDECAR": "/run/vitals/s.sock",
    }
    assert look("vllm-plugins", environ)[0].status is status


def test_empty_filter():
    (finding,) = look("vllm-plugins", {"VLLM_PLUGINS": ""})
    assert finding.status is Status.FAIL
    assert "no plugin at all" in finding.found
    assert f'VLLM_PLUGINS="{OURS}"' in finding.advice


@pytest.mark.parametrize("value", [None, "", "0"])
def test_python_front_end(value):
    environ = {} if value is None else {"VLLM_USE_RUST_FRONTEND": value}
    assert look("frontend", environ)[0].status is Status.OK


@pytest.mark.parametrize("value", ["1", "2", "true"])
def test_rust_front_end(value):
    (finding,) = look("frontend", {"VLLM_USE_RUST_FRONTEND": value})
    assert finding.status is Status.FAIL
    assert "Unset VLLM_USE_RUST_FRONTEND" in finding.advice
    stopped = not value.isdigit()  # vLLM itself does not take it
    assert stopped or "vllm-vitals sidecar --native-url http://HOST:8000/metrics" in finding.advice


@pytest.mark.parametrize(("numbers", "status"), [((0, 21, 0), Status.OK), ((0, 22, 0), Status.FAIL)])
def test_rust_front_end_before_there_was_one(numbers, status):
    launch = Launch({"VLLM_USE_RUST_FRONTEND": "1"})
    launch.release = numbers
    assert next(CHECKS["frontend"](launch)).status is status
