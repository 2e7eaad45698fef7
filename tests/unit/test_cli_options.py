"""Doctor: our own settings."""

from vllm_vitals.cli.checks import CHECKS
from vllm_vitals.cli.checks.finding import Status
from vllm_vitals.cli.checks.launch import Launch


def look(**environ):
    return list(CHECKS["settings"](Launch(environ)))


def test_defaults():
    (finding,) = look(PATH="/bin")
    assert (finding.status, finding.advice) == (Status.OK, "")
    assert "default" in finding.found


def test_where_each_came_from(tmp_path):
    file = tmp_path / "vitals.toml"
    file.write_text("stale_after = 5\n[prometheus]\nhost = '127.0.0.1'\nport = 1\n")
    (finding,) = look(
        VITALS_CONFIG=str(file),
        OTEL_EXPORTER_PROMETHEUS_PORT="9500",
        VITALS_BUCKETS__STEP="[1, 2]",
        VITALS_STRICT="true",
    )
    assert finding.status is Status.OK
    for told in (
        f"stale_after = 5.0 (from {file}: stale_after)",
        f"prometheus.host = 127.0.0.1 (from {file}: prometheus.host)",
        "prometheus.port = 9500 (from OTEL_EXPORTER_PROMETHEUS_PORT)",
        "buckets.step = [1.0, 2.0] (from VITALS_BUCKETS__STEP)",
        "strict = True (from VITALS_STRICT)",
    ):
        assert told in finding.found


def test_every_problem_is_a_finding():
    findings = look(VITALS_PROMETHEUS__PORT="70000", VITALS_QUEUE_SIZE="x", VITALS_PROMETHEUS__HORST="a")
    assert [finding.status for finding in findings] == [Status.FAIL] * 3
    text = "\n".join(finding.found for finding in findings)
    assert "VITALS_PROMETHEUS__PORT='70000'" in text
    assert "less than or equal to 65535" in text
    assert "VITALS_QUEUE_SIZE='x'" in text
    assert "did you mean 'host'" in text
    assert all("vLLM will start without our metrics" in finding.advice for finding in findings)


def test_strict_stops_vllm():
    (finding,) = look(VITALS_STRICT="1", VITALS_QUEUE_SIZE="1")
    assert "vLLM will not start" in finding.advice


def test_a_file_that_is_not_there(tmp_path):
    (finding,) = look(VITALS_CONFIG=str(tmp_path / "none.yaml"))
    assert finding.status is Status.FAIL
    assert "VITALS_CONFIG=" in finding.found


def test_unknown_variables_are_warned_of_whether_or_not_the_rest_is_right():
    for environ in ({}, {"VITALS_QUEUE_SIZE": "1"}):
        finding = look(VITALS_QUEUE_SIZ="1", **environ)[-1]
        assert finding.status is Status.WARN
        assert "VITALS_QUEUE_SIZ is not a setting" in finding.found
        assert "VITALS_QUEUE_SIZE" in finding.found
