"""Doctor: our own settings."""

from vllm_vitals.cli.doctor import CHECKS
from vllm_vitals.cli.doctor.finding import Status
from vllm_vitals.cli.doctor.launch import Launch


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


def test_secrets_are_not_shown():
    environ = {
        "VITALS_OTLP__ENDPOINT": "http://me:t0psecret@c:4318/x",
        "OTEL_EXPORTER_OTLP_HEADERS": "api-key=t0psecret",
        "VITALS_NATIVE__URL": "http://me:t0psecret@v:8000/metrics",
    }
    (finding,) = look(**environ)
    assert "otlp.endpoint = http://c:4318/x (from VITALS_OTLP__ENDPOINT)" in finding.found
    assert "native.url = http://v:8000/metrics (from VITALS_NATIVE__URL)" in finding.found
    assert "otlp.headers = api-key (from OTEL_EXPORTER_OTLP_HEADERS)" in finding.found
    assert "t0psecret" not in finding.found


def test_every_problem_is_a_finding():
    findings = look(VITALS_PROMETHEUS__PORT="70000", VITALS_QUEUE_SIZE="x", VITALS_PROMETHEUS__HORST="a")
    assert [finding.status for finding in findings] == [Status.FAIL] * 3
    text = "\n".join(finding.found for finding in findings)
    assert "VITALS_PROMETHEUS__PORT='70000'" in text
    assert "less than or equal to 65535" in text
    assert "VITALS_QUEUE_SIZE='x'" in text
    assert "did you mean 'host'" in text
    assert all("vLLM will start without our metrics" in finding.advice for finding in findings)


def test_one_wrong_section_leaves_the_rest_on():
    launch = Launch({"VITALS_OTLP__INTERVAL": "x", "VITALS_PROMETHEUS__PORT": "0", "VITALS_STALE_AFTER": "5"})
    (finding,) = CHECKS["settings"](launch)
    assert "VITALS_OTLP__INTERVAL='x'" in finding.found
    assert "Until then nothing will be pushed over OTLP." in finding.advice
    assert launch.otlp is None
    assert launch.prometheus is not None
    assert launch.origin("prometheus", "port") == "from VITALS_PROMETHEUS__PORT"
    assert launch.origin("prometheus", "host") == "VITALS_PROMETHEUS__HOST is not set"
    assert next(CHECKS["port"](launch)).status is Status.WARN
    assert next(CHECKS["otlp"](launch)).status is Status.SKIP


def test_each_wrong_section_says_what_goes_without():
    findings = look(VITALS_PROMETHEUS__PORT="x", VITALS_GEN_AI__PROVIDER_NAME="")
    assert ["there will be no scrape endpoint" in finding.advice for finding in findings] == [True, False]
    assert "gen_ai.server.* metrics will be left out" in findings[1].advice
    launch = Launch({"VITALS_PROMETHEUS__PORT": "x"})
    assert launch.prometheus is None
    assert launch.otlp is not None
    assert next(CHECKS["port"](launch)).status is Status.SKIP


def test_strict_stops_vllm():
    for wrong in ("VITALS_QUEUE_SIZE", "VITALS_OTLP__TIMEOUT"):
        (finding,) = look(VITALS_STRICT="1", **{wrong: "x"})
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


def test_standard_variables_that_are_not_used_are_warned_of():
    for environ in ({}, {"VITALS_OTLP__TIMEOUT": "x"}, {"VITALS_QUEUE_SIZE": "x"}):
        finding = look(OTEL_EXPORTER_OTLP_PROTOCOL="http/json", **environ)[-1]
        assert finding.status is Status.WARN
        assert "OTEL_EXPORTER_OTLP_PROTOCOL='http/json' is ignored" in finding.found
