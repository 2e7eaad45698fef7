"""The standard variables: which setting each stands for, which wins, and what is said of a wrong one."""

import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.builders import examples
from vllm_vitals.config.load import SettingsError, load
from vllm_vitals.config.otel_env import pairs
from vllm_vitals.config.settings import OtlpSettings, Settings
from vllm_vitals.deployment import runtime
from vllm_vitals.exporters.otlp.resource import process_resource
from vllm_vitals.exporters.otlp.target import resolve

DEFAULTS = OtlpSettings()
GENERIC, METRICS, TRACES = "OTEL_EXPORTER_OTLP_", "OTEL_EXPORTER_OTLP_METRICS_", "OTEL_EXPORTER_OTLP_TRACES_"


def otlp(environ: dict[str, str]) -> OtlpSettings:
    return load(environ).settings.otlp


def shown(settings: OtlpSettings, name: str) -> Any:
    value = getattr(settings, name)
    return {key: each.get_secret_value() for key, each in value.items()} if name == "headers" else value


# --- Which setting

BOTH = [
    ("ENDPOINT", "http://c:4318", "endpoint", "http://c:4318"),
    ("PROTOCOL", "grpc", "protocol", "grpc"),
    ("PROTOCOL", "http/protobuf", "protocol", "http/protobuf"),
    ("HEADERS", "a=1,b=2", "headers", {"a": "1", "b": "2"}),
    ("INSECURE", "true", "insecure", True),
    ("INSECURE", "TRUE", "insecure", True),
    ("INSECURE", "1", "insecure", False),
    ("INSECURE", "false", "insecure", False),
    ("COMPRESSION", "gzip", "compression", "gzip"),
    ("COMPRESSION", "none", "compression", "none"),
    ("TIMEOUT", "2500", "timeout", 2.5),
]
ONE = [
    ("OTEL_METRIC_EXPORT_INTERVAL", "60000", "interval", 60.0),
    ("OTEL_METRIC_EXPORT_INTERVAL", "500", "interval", 0.5),
    (f"{METRICS}TEMPORALITY_PREFERENCE", "cumulative", "temporality", "cumulative"),
    (f"{METRICS}TEMPORALITY_PREFERENCE", "Delta", "temporality", "delta"),
    (f"{METRICS}TEMPORALITY_PREFERENCE", "LOWMEMORY", "temporality", "lowmemory"),
    (f"{METRICS}DEFAULT_HISTOGRAM_AGGREGATION", "explicit_bucket_histogram", "histograms", "explicit"),
    (f"{METRICS}DEFAULT_HISTOGRAM_AGGREGATION", "base2_exponential_bucket_histogram", "histograms", "exponential"),
    ("OTEL_SERVICE_NAME", "chat", "service_name", "chat"),
    ("OTEL_RESOURCE_ATTRIBUTES", "a=1,b=x%20y", "resource", {"a": "1", "b": "x y"}),
]
TABLE = [(f"{prefix}{name}", *rest) for name, *rest in BOTH for prefix in (GENERIC, METRICS)] + ONE


@pytest.mark.parametrize(("variable", "text", "setting", "value"), TABLE)
def test_a_variable_is_a_setting(variable: str, text: str, setting: str, value: Any) -> None:
    loaded = load({variable: f" {text} "})
    assert shown(loaded.settings.otlp, setting) == value
    assert loaded.origins["otlp", setting] == variable
    assert loaded.warnings == []


@pytest.mark.parametrize(
    ("name", "setting"), [("CERTIFICATE", "tls_ca"), ("CLIENT_CERTIFICATE", "tls_cert"), ("CLIENT_KEY", "tls_key")]
)
@pytest.mark.parametrize("prefix", [GENERIC, METRICS])
def test_files_of_tls(prefix: str, name: str, setting: str, tmp_path: Path) -> None:
    files = {each: tmp_path / each for each in ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY")}
    for path in files.values():
        path.touch()
    assert getattr(otlp({f"{prefix}{each}": str(path) for each, path in files.items()}), setting) == files[name]


@pytest.mark.parametrize(("name", "text", "setting", "value"), BOTH)
def test_the_signals_own_variable_wins_over_the_common_one(name: str, text: str, setting: str, value: Any) -> None:
    other = {"ENDPOINT": "http://other", "PROTOCOL": "grpc", "HEADERS": "z=9", "INSECURE": "true",
             "COMPRESSION": "none", "TIMEOUT": "9000"}  # fmt: skip
    assert shown(otlp({f"{METRICS}{name}": text, f"{GENERIC}{name}": other[name]}), setting) == value


@pytest.mark.parametrize(
    ("variable", "text", "ours", "value", "setting", "expected"),
    [
        (f"{METRICS}PROTOCOL", "grpc", "PROTOCOL", "http/protobuf", "protocol", "http/protobuf"),
        (f"{METRICS}TIMEOUT", "9000", "TIMEOUT", "3", "timeout", 3.0),
        ("OTEL_METRIC_EXPORT_INTERVAL", "60000", "INTERVAL", "5", "interval", 5.0),
        ("OTEL_SERVICE_NAME", "theirs", "SERVICE_NAME", "ours", "service_name", "ours"),
        (f"{METRICS}INSECURE", "true", "INSECURE", "false", "insecure", False),
        ("OTEL_SDK_DISABLED", "true", "ENABLED", "true", "enabled", True),
        (f"{GENERIC}HEADERS", "a=1", "HEADERS", '{"b": "2"}', "headers", {"b": "2"}),
    ],
)
def test_our_own_variable_wins_over_the_standard_one(
    variable: str, text: str, ours: str, value: str, setting: str, expected: Any
) -> None:
    assert shown(otlp({variable: text, f"VITALS_OTLP__{ours}": value}), setting) == expected


def test_a_standard_variable_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "vitals.yaml"
    file.write_text("otlp:\n  interval: 7\n  timeout: 7\n  endpoint: http://file/x\n")
    settings = otlp({"VITALS_CONFIG": str(file), "OTEL_METRIC_EXPORT_INTERVAL": "9000"})
    assert (settings.interval, settings.timeout, settings.endpoint) == (9.0, 7.0, "http://file/x")


@pytest.mark.parametrize("blank", ["", " ", "\t"])
@pytest.mark.parametrize("variable", sorted({row[0] for row in TABLE} | {"OTEL_SDK_DISABLED", "OTEL_METRICS_EXPORTER"}))
def test_an_empty_variable_is_unset(variable: str, blank: str) -> None:
    loaded = load({variable: blank})
    assert (loaded.settings, loaded.warnings) == (Settings(), [])


def test_an_empty_variable_of_the_signal_leaves_the_common_one() -> None:
    assert otlp({f"{METRICS}ENDPOINT": "", f"{GENERIC}ENDPOINT": "http://c"}).endpoint == "http://c"


# --- Wrong values

WRONG = [
    (f"{METRICS}PROTOCOL", "http/json", "protocol"),
    (f"{GENERIC}PROTOCOL", "carrier-pigeon", "protocol"),
    (f"{GENERIC}COMPRESSION", "zstd", "compression"),
    (f"{METRICS}TIMEOUT", "soon", "timeout"),
    (f"{METRICS}TIMEOUT", "-1", "timeout"),
    (f"{METRICS}TIMEOUT", "nan", "timeout"),
    (f"{METRICS}TIMEOUT", "inf", "timeout"),
    ("OTEL_METRIC_EXPORT_INTERVAL", "0", "interval"),
    ("OTEL_METRIC_EXPORT_INTERVAL", "5s", "interval"),
    ("OTEL_METRIC_EXPORT_INTERVAL", "nan", "interval"),
    ("OTEL_METRIC_EXPORT_INTERVAL", "1e99", "interval"),
    (f"{METRICS}TEMPORALITY_PREFERENCE", "sideways", "temporality"),
    (f"{METRICS}DEFAULT_HISTOGRAM_AGGREGATION", "explicit", "histograms"),
    ("OTEL_RESOURCE_ATTRIBUTES", "nonsense", "resource"),
]


@pytest.mark.parametrize(("variable", "text", "setting"), WRONG)
def test_a_wrong_value_is_a_warning_and_the_default(variable: str, text: str, setting: str) -> None:
    loaded = load({f"{GENERIC}ENDPOINT": "http://c", variable: text})
    (warning,) = loaded.warnings
    assert getattr(loaded.settings.otlp, setting) == getattr(DEFAULTS, setting)
    assert warning.startswith(variable)
    assert repr(text) in warning
    assert f"otlp.{setting} stays" in warning
    reason = warning.partition("(")[2].partition(")")[0]
    assert len(reason) > 5
    assert ("otlp", setting) not in loaded.origins


def test_a_wrong_value_of_the_signal_does_not_bring_a_warning_for_the_common_one() -> None:
    loaded = load({f"{METRICS}TIMEOUT": "soon", f"{GENERIC}TIMEOUT": "3000"})
    assert len(loaded.warnings) == 1
    assert loaded.warnings[0].startswith(f"{METRICS}TIMEOUT")


def test_a_warning_is_told_also_when_another_setting_is_wrong(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(f"{GENERIC}ENDPOINT", "nowhere")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "5s")
    host = runtime._make()
    assert "otlp" in host.broken
    assert "OTEL_METRIC_EXPORT_INTERVAL" in caplog.text


@pytest.mark.parametrize(
    "text",
    ["s3cret", "authorization:s3cret", "=s3cret", "a=1,s3cret", "authorization:Bearer s3cret==", "Bearer s3cret=",
     "a=1,authorization:%20s3cret="],
)  # fmt: skip
def test_wrong_headers_are_a_warning_without_their_value(text: str) -> None:
    loaded = load({f"{GENERIC}HEADERS": text})
    (warning,) = loaded.warnings
    assert f"{GENERIC}HEADERS" in warning
    assert "s3cret" not in warning
    assert loaded.settings.otlp.headers == {}


def test_headers_are_in_no_repr() -> None:
    loaded = load({f"{GENERIC}HEADERS": "authorization=Bearer%20s3cret", f"{GENERIC}ENDPOINT": "http://c"})
    assert loaded.settings.otlp.headers["authorization"].get_secret_value() == "Bearer s3cret"
    told = repr(loaded) + str(loaded.settings) + repr(resolve(loaded.settings.otlp)) + loaded.settings.model_dump_json()
    assert "s3cret" not in told


def test_an_error_elsewhere_shows_no_header() -> None:
    environ = {f"{GENERIC}HEADERS": "authorization=s3cret", f"{GENERIC}ENDPOINT": "nowhere"}
    with pytest.raises(SettingsError) as error:
        load(environ)
    assert "s3cret" not in str(error.value)


def test_a_wrong_endpoint_does_not_show_its_password() -> None:
    with pytest.raises(SettingsError) as error:
        load({f"{GENERIC}ENDPOINT": "ftp://user:s3cret@c:21"})
    assert "s3cret" not in str(error.value)


# --- Pairs


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("a=1", {"a": "1"}),
        (" a = 1 , b=2 ,, ", {"a": "1", "b": "2"}),
        ("a=b=c", {"a": "b=c"}),
        ("a=", {"a": ""}),
        ("Authorization=Basic%20dTpw%3D%3D", {"Authorization": "Basic dTpw=="}),
        ("a=1%2C2,b=%20", {"a": "1,2", "b": " "}),
        ("k%3Dx=%C3%BC", {"k=x": "\u00fc"}),
        ("a=1,a=2", {"a": "2"}),
        ("a=100%", {"a": "100%"}),
        ("a=x y", {"a": "x y"}),
    ],
)
def test_pairs(text: str, expected: dict[str, str]) -> None:
    assert pairs(text) == expected


@pytest.mark.parametrize("text", ["a", "=1", "a=1,b", " = "])
def test_pairs_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="key1=value1,key2=value2"):
        pairs(text)


words = st.text(min_size=1, max_size=10)


@examples(150)
@given(st.dictionaries(words, words, max_size=4))
def test_what_is_encoded_comes_back(given_pairs: dict[str, str]) -> None:
    given_pairs = {_clean(key): _clean(value) for key, value in given_pairs.items()}
    text = ",".join(f"{quote(key, safe='')}={quote(value, safe='')}" for key, value in given_pairs.items())
    assert pairs(text) == given_pairs


def _clean(text: str) -> str:
    """Return text that UTF-8 can hold."""
    return text.encode("utf-8", "replace").decode() or "x"


# --- Switches, other signals


@pytest.mark.parametrize(
    ("environ", "on"),
    [
        ({"OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_SDK_DISABLED": "TRUE"}, False),
        ({"OTEL_SDK_DISABLED": "1"}, True),
        ({"OTEL_SDK_DISABLED": "false"}, True),
        ({"OTEL_METRICS_EXPORTER": "none"}, False),
        ({"OTEL_METRICS_EXPORTER": "NONE"}, False),
        ({"OTEL_METRICS_EXPORTER": "otlp"}, True),
        ({"OTEL_METRICS_EXPORTER": "prometheus"}, False),
        ({"OTEL_METRICS_EXPORTER": " Prometheus , OTLP "}, True),
        ({"OTEL_METRICS_EXPORTER": "console"}, False),
        ({"OTEL_METRICS_EXPORTER": "console,otlp"}, True),
        ({"OTEL_METRICS_EXPORTER": "none,otlp"}, False),
        ({"OTEL_METRICS_EXPORTER": "otpl"}, True),
        ({"OTEL_METRICS_EXPORTER": "otpl,prometheus"}, False),
        ({"OTEL_METRICS_EXPORTER": ",,"}, True),
        ({"OTEL_TRACES_EXPORTER": "none"}, True),
        ({"OTEL_METRICS_EXPORTER": "otlp", "OTEL_SDK_DISABLED": "true"}, False),
    ],
)
def test_switches(environ: dict[str, str], *, on: bool) -> None:
    settings = load({**environ, f"{GENERIC}ENDPOINT": "http://c"}).settings
    assert settings.otlp.enabled is on
    assert (resolve(settings.otlp) is not None) is on
    assert settings.prometheus.enabled


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("otlp", ""),
        ("prometheus", ""),
        ("none", ""),
        ("otlp,prometheus", ""),
        ("console", "'console': console has no effect; the supported names are otlp, prometheus, none"),
        (
            "otlp, Logging,logging,typo",
            "'otlp, Logging,logging,typo': logging, typo has no effect; the supported names are otlp, prometheus, none",
        ),
    ],
)
def test_exporters_that_there_are_none_of_are_named_in_one_line(text: str, warning: str) -> None:
    expected = [f"OTEL_METRICS_EXPORTER={warning}"] if warning else []
    assert load({"OTEL_METRICS_EXPORTER": text}).warnings == expected


def test_a_timeout_that_was_meant_in_seconds_is_warned_of() -> None:
    for prefix in (GENERIC, METRICS):
        loaded = load({f"{prefix}TIMEOUT": "120"})
        assert loaded.settings.otlp.timeout == 0.12
        assert loaded.warnings == [
            f"{prefix}TIMEOUT='120' means 0.12 s, because its unit is milliseconds; for 120 s write 120000"
        ]
    assert load({f"{GENERIC}TIMEOUT": "1000"}).warnings == []
    (warning,) = load({f"{GENERIC}TIMEOUT": "10"}).warnings
    assert warning == (
        f"{GENERIC}TIMEOUT='10' is ignored (Input should be greater than or equal to 0.1); otlp.timeout stays 10.0; "
        "the unit is milliseconds: 10000 means 10 s"
    )


@pytest.mark.parametrize(
    "environ",
    [
        {f"{TRACES}{name}": "x" for name in ("ENDPOINT", "PROTOCOL", "HEADERS", "CERTIFICATE", "TIMEOUT", "INSECURE")},
        {"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": "http://logs", "OTEL_BSP_SCHEDULE_DELAY": "1", "OTEL_TRACES_SAMPLER": "x"},
    ],
)
def test_variables_of_other_signals_have_no_effect(environ: dict[str, str]) -> None:
    loaded = load(environ)
    assert (loaded.settings, loaded.warnings, loaded.origins) == (Settings(), [], {})


# --- Who we are


def identity(environ: dict[str, str]) -> Any:
    settings = otlp(environ)
    return process_resource({}, service=settings.service_name, version="1", attributes=settings.resource).attributes


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ({}, "vllm"),
        ({"OTEL_SERVICE_NAME": "a"}, "a"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=b,x=1"}, "b"),
        ({"OTEL_SERVICE_NAME": "a", "OTEL_RESOURCE_ATTRIBUTES": "service.name=b"}, "a"),
        ({"OTEL_SERVICE_NAME": "vllm", "OTEL_RESOURCE_ATTRIBUTES": "service.name=b"}, "vllm"),
        ({"OTEL_SERVICE_NAME": "", "OTEL_RESOURCE_ATTRIBUTES": "service.name=b"}, "b"),
        ({"VITALS_OTLP__SERVICE_NAME": "c", "OTEL_SERVICE_NAME": "a"}, "c"),
    ],
)
def test_the_services_name(environ: dict[str, str], name: str) -> None:
    assert identity(environ)["service.name"] == name


def test_resource_attributes_join_what_is_found() -> None:
    found = identity({"OTEL_RESOURCE_ATTRIBUTES": "team=a%2Cb,service.instance.id=me"})
    assert (found["team"], found["service.instance.id"], found["process.pid"]) == ("a,b", "me", os.getpid())


def test_a_push_leaves_every_fifteen_seconds_unless_told_otherwise() -> None:
    assert Settings().otlp.interval == 15
