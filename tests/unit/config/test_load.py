"""Where settings come from, and what is said of those that are wrong."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.builders import examples
from vllm_vitals.config.load import SettingsError, is_strict, load, variables
from vllm_vitals.config.settings import Settings

YAML = "prometheus:\n  port: 1111\n  host: file.example\nqueue_size: 100\nbuckets:\n  step: [1, 2]\n"
TOML = 'queue_size = 100\n[prometheus]\nport = 1111\nhost = "file.example"\n[buckets]\nstep = [1, 2]\n'


@pytest.fixture(params=["yaml", "yml", "toml"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return a settings file that says the same in each format."""
    path = tmp_path / f"vitals.{request.param}"
    path.write_text(TOML if request.param == "toml" else YAML)
    return str(path)


def write(directory: Path, text: str, name: str = "vitals.yaml") -> str:
    path = directory / name
    path.write_text(text)
    return str(path)


def problems(environ: dict[str, str]) -> list[str]:
    with pytest.raises(SettingsError) as error:
        load(environ)
    return str(error.value).splitlines()


def outcome(environ: dict[str, str]) -> list[str]:
    """Return what is wrong, line by line; nothing when there are settings."""
    try:
        load(environ)
    except SettingsError as error:
        return str(error).split("\n")
    return []


# --- Precedence


def test_nothing_said_means_the_defaults() -> None:
    loaded = load({"PATH": "/bin"})
    assert (loaded.settings, loaded.origins, loaded.warnings) == (Settings(), {}, [])


def test_a_file_says_the_same_in_each_format(file: str) -> None:
    settings = load({"VITALS_CONFIG": file}).settings
    assert (settings.prometheus.port, settings.prometheus.host) == (1111, "file.example")
    assert (settings.queue_size, settings.buckets) == (100, {"step": [1.0, 2.0]})


def test_variables_win_over_standard_ones_over_the_file_over_defaults(file: str) -> None:
    environ = {"VITALS_CONFIG": file}
    assert load(environ).settings.prometheus.port == 1111
    environ["OTEL_EXPORTER_PROMETHEUS_PORT"] = "2222"
    assert load(environ).settings.prometheus.port == 2222
    environ["VITALS_PROMETHEUS__PORT"] = "3333"
    loaded = load(environ)
    assert loaded.settings.prometheus.port == 3333
    assert loaded.settings.prometheus.host == "file.example"
    assert loaded.settings.drain_interval == Settings().drain_interval
    assert loaded.origins["prometheus", "port"] == "VITALS_PROMETHEUS__PORT"
    assert file in loaded.origins["prometheus", "host"]


def test_the_standard_variables_are_obeyed() -> None:
    environ = {"OTEL_EXPORTER_PROMETHEUS_HOST": "0.0.0.0", "OTEL_EXPORTER_PROMETHEUS_PORT": "0"}  # noqa: S104
    settings = load(environ).settings.prometheus
    assert (settings.host, settings.port) == ("0.0.0.0", 0)  # noqa: S104


def test_an_empty_standard_variable_is_unset(file: str) -> None:
    environ = {"OTEL_EXPORTER_PROMETHEUS_HOST": "", "OTEL_EXPORTER_PROMETHEUS_PORT": ""}
    assert load(environ).settings == Settings()
    assert load({**environ, "VITALS_CONFIG": file}).settings.prometheus.port == 1111


def test_an_empty_file_name_is_unset() -> None:
    assert load({"VITALS_CONFIG": ""}).settings == Settings()


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "---\n"])
def test_an_empty_file_means_the_defaults(tmp_path: Path, text: str) -> None:
    assert load({"VITALS_CONFIG": write(tmp_path, text)}).settings == Settings()


def test_bucket_families_come_as_json_or_one_by_one() -> None:
    environ = {"VITALS_BUCKETS": '{"step": [1, 2], "export": [5]}', "VITALS_BUCKETS__EXPORT": "[7, 8]"}
    assert load(environ).settings.buckets == {"step": [1.0, 2.0], "export": [7.0, 8.0]}


def test_a_section_given_as_json_leaves_its_other_settings_alone(file: str) -> None:
    environ = {"VITALS_CONFIG": file, "VITALS_PROMETHEUS": '{"port": 4444}'}
    settings = load(environ).settings.prometheus
    assert (settings.port, settings.host) == (4444, "file.example")


@pytest.mark.parametrize(("text", "value"), [("true", True), ("1", True), ("False", False), ("0", False)])
def test_switches(text: str, *, value: bool) -> None:
    assert load({"VITALS_EXEMPLARS": text}).settings.exemplars is value


# --- Wrong values

WRONG = [
    ({"VITALS_PROMETHEUS__PORT": "abc"}, ["VITALS_PROMETHEUS__PORT", "'abc'", "integer"]),
    ({"VITALS_PROMETHEUS__PORT": "70000"}, ["VITALS_PROMETHEUS__PORT", "70000", "65535"]),
    ({"VITALS_PROMETHEUS__PORT": "-1"}, ["VITALS_PROMETHEUS__PORT", "-1", "greater than or equal to 0"]),
    ({"VITALS_PROMETHEUS__PORT": ""}, ["VITALS_PROMETHEUS__PORT", "''", "integer"]),
    ({"OTEL_EXPORTER_PROMETHEUS_PORT": "http"}, ["OTEL_EXPORTER_PROMETHEUS_PORT", "'http'", "integer"]),
    ({"VITALS_PROMETHEUS__HOST": ""}, ["VITALS_PROMETHEUS__HOST", "''", "at least 1 character"]),
    ({"VITALS_PROMETHEUS__ENABLED": "maybe"}, ["VITALS_PROMETHEUS__ENABLED", "'maybe'", "boolean"]),
    ({"VITALS_QUEUE_SIZE": "3"}, ["VITALS_QUEUE_SIZE", "3", "greater than or equal to 16"]),
    ({"VITALS_QUEUE_SIZE": "20.5"}, ["VITALS_QUEUE_SIZE", "20.5", "integer"]),
    ({"VITALS_DRAIN_INTERVAL": "11"}, ["VITALS_DRAIN_INTERVAL", "11", "less than or equal to 10"]),
    ({"VITALS_DRAIN_INTERVAL": "nan"}, ["VITALS_DRAIN_INTERVAL", "nan", "than or equal to"]),
    ({"VITALS_STALE_AFTER": "inf"}, ["VITALS_STALE_AFTER", "inf", "86400"]),
    ({"VITALS_STALE_AFTER": "1 min"}, ["VITALS_STALE_AFTER", "'1 min'", "number"]),
    ({"VITALS_BUCKETS": "step=1,2"}, ["VITALS_BUCKETS", "'step=1,2'", "dictionary"]),
    ({"VITALS_BUCKETS": '{"step": '}, ["VITALS_BUCKETS", '{"step": ', "JSON"]),
    ({"VITALS_BUCKETS": '{"stepp": [1]}'}, ["VITALS_BUCKETS", "stepp", "request_latency"]),
    ({"VITALS_BUCKETS": '{"step": [2, 1]}'}, ["VITALS_BUCKETS", "step", "[2.0, 1.0]", "ascend"]),
    ({"VITALS_BUCKETS": '{"step": ["x"]}'}, ["VITALS_BUCKETS", "'x'", "number"]),
    ({"VITALS_BUCKETS__STEP": "[]"}, ["VITALS_BUCKETS", "step", "1 to 200"]),
    ({"VITALS_PROMETHEUS": "yes"}, ["VITALS_PROMETHEUS", "'yes'", "dictionary"]),
    ({"VITALS_PROMETHEUS__PROT": "1"}, ["VITALS_PROMETHEUS__PROT", "did you mean 'port'"]),
    ({"VITALS_PROMETHEUS__PORT__X": "1"}, ["VITALS_PROMETHEUS__PORT__X", "prometheus.port"]),
    ({"VITALS_PROMETHEUS__ZZZ": "1"}, ["VITALS_PROMETHEUS__ZZZ", "the settings are", "port", "host"]),
    ({"VITALS_GEN_AI__PROVIDER_NAME": "x" * 65}, ["VITALS_GEN_AI__PROVIDER_NAME", "xxx", "at most 64"]),
    ({"VITALS_PROMETHEUS__TLS_CERT": "/no/such"}, ["VITALS_PROMETHEUS__TLS_CERT", "/no/such", "can read"]),
]  # fmt: skip


@pytest.mark.parametrize(("environ", "words"), WRONG, ids=lambda value: str(value)[:50])
def test_a_wrong_value_gets_a_line_with_its_variable_itself_and_what_is_allowed(
    environ: dict[str, str], words: list[str]
) -> None:
    (line,) = problems(environ)
    assert [word for word in words if word not in line] == []


IN_FILE = [
    ("prometheus:\n  port: abc\n", ["prometheus.port", "'abc'", "integer"]),
    ("prometheus: 5\n", ["prometheus", "5", "dictionary"]),
    ("promtheus:\n  port: 1\n", ["promtheus", "did you mean 'prometheus'"]),
    ("buckets:\n  step: [.inf]\n", ["buckets", "step", "inf", "finite"]),
    ("queue_size: [1]\n", ["queue_size", "[1]", "integer"]),
    ("exemplars: 3\n", ["exemplars", "3", "boolean"]),
    ("prometheus:\n  port: true\n", ["prometheus.port", "True", "must be a number"]),
    ("queue_size: yes\n", ["queue_size", "True", "must be a number"]),
    ("stale_after: off\n", ["stale_after", "False", "must be a number"]),
    ("price:\n  per_gpu_hour: on\n", ["price.per_gpu_hour", "True", "must be a number"]),
    ("perf: {peak_flops: true}\n", ["perf.peak_flops", "True", "must be a number"]),
    ("buckets:\n  step: [true, 2]\n", ["buckets.step", "True", "must be a number"]),
    ("slos: [{name: a, target: 0.9, ttft: 1, output_tokens: [false, 9]}]\n", ["slos", "False", "must be a number"]),
    ("slos: [{name: a, target: 0.9, ttft: true}]\n", ["slos", "True", "a duration"]),
]


@pytest.mark.parametrize(("text", "words"), IN_FILE)
def test_a_wrong_value_in_a_file_is_named_by_file_and_key(tmp_path: Path, text: str, words: list[str]) -> None:
    path = write(tmp_path, text)
    (line,) = problems({"VITALS_CONFIG": path})
    assert [word for word in [path, *words] if word not in line] == []


def test_true_and_false_are_no_numbers_in_toml_either(tmp_path: Path) -> None:
    path = write(tmp_path, "[prometheus]\nport = true\n", "vitals.toml")
    (line,) = problems({"VITALS_CONFIG": path})
    assert line == f"{path}: prometheus.port=True: must be a number, not true or false (setting prometheus.port)"


def numbers() -> Iterator[tuple[str, str]]:
    """Yield each setting, of a section or of none, that is a number or may be one."""
    for variable in variables():
        section, _, name = variable.removeprefix("VITALS_").lower().rpartition("__")
        owner = Settings.model_fields[section].annotation if section else Settings
        kind = owner.model_fields[name].annotation  # type: ignore[union-attr]
        if {int, float} & {kind, *(get_args(each)[0] if get_args(each) else each for each in get_args(kind))}:
            yield section, name


def test_true_is_taken_for_a_number_nowhere() -> None:
    found = list(numbers())
    assert {("prometheus", "port"), ("", "queue_size"), ("price", "per_gpu_hour"), ("wire", "buffer")} <= {*found}
    for section, name in found:
        key = f"VITALS_{section or name}".upper()
        if section:
            (line,) = problems({key: json.dumps({name: True})})
            assert "must be a number, not true or false" in line
        (line,) = problems({f"{key}__{name}".upper() if section else key: "true"})
        assert "valid number" in line or "valid integer" in line


def test_every_wrong_value_gets_its_line() -> None:
    environ = {"VITALS_QUEUE_SIZE": "x", "VITALS_PROMETHEUS__PORT": "y", "VITALS_BUCKETS": "{", "VITALS_EXEMPLARS": "1"}
    lines = problems(environ)
    assert len(lines) == 3
    for variable in ("VITALS_QUEUE_SIZE", "VITALS_PROMETHEUS__PORT", "VITALS_BUCKETS"):
        assert sum(variable in line for line in lines) == 1


def test_settings_that_do_not_go_together_are_named(tmp_path: Path) -> None:
    pem = write(tmp_path, "x", "cert.pem")
    for fields, words in (
        ({"TLS_CERT": pem}, ["prometheus", "tls_cert", "tls_key"]),
        ({"TLS_CLIENT_CA": pem}, ["prometheus", "tls_client_ca", "tls_cert"]),
        ({"INCLUDE_NATIVE": "1", "JOIN_NATIVE": "1"}, ["prometheus", "include_native", "join_native"]),
    ):
        (line,) = problems({f"VITALS_PROMETHEUS__{name}": value for name, value in fields.items()})
        assert [word for word in words if word not in line] == []


def test_a_directory_is_no_certificate(tmp_path: Path) -> None:
    environ = {"VITALS_PROMETHEUS__TLS_CERT": str(tmp_path), "VITALS_PROMETHEUS__TLS_KEY": str(tmp_path)}
    lines = problems(environ)
    assert all("must be a file" in line for line in lines)


def test_an_encrypted_key_is_not_taken(tmp_path: Path) -> None:
    key = write(tmp_path, "-----BEGIN ENCRYPTED PRIVATE KEY-----\n", "key.pem")
    (line,) = problems({"VITALS_PROMETHEUS__TLS_CERT": key, "VITALS_PROMETHEUS__TLS_KEY": key})
    assert [word for word in ("VITALS_PROMETHEUS__TLS_KEY", key, "encrypted") if word not in line] == []


def test_a_part_of_what_is_given_as_a_whole_elsewhere(tmp_path: Path) -> None:
    environ = {"VITALS_CONFIG": write(tmp_path, "prometheus: off\n"), "VITALS_PROMETHEUS__PORT": "1"}
    assert any("VITALS_PROMETHEUS__PORT='1'" in line for line in problems(environ))


# --- Files that cannot be read

BAD_FILES = [
    ("a.yaml", "a: [1, 2\n", "not valid YAML"),
    ("a.yaml", "a: b: c\n", "not valid YAML"),
    ("a.yaml", "stale_after: 2024-13-45\n", "not valid YAML"),
    ("a.yaml", "- 1\n- 2\n", "mapping"),
    ("a.yaml", "just words\n", "mapping"),
    ("a.yaml", "a: !!python/object/apply:os.getcwd []\n", "not valid YAML"),
    ("a.toml", "a = \n", "not valid TOML"),
    ("a.json", "{}", ".yaml, .yml or .toml"),
]


@pytest.mark.parametrize(("name", "text", "words"), BAD_FILES)
def test_a_file_that_says_nothing_sensible(tmp_path: Path, name: str, text: str, words: str) -> None:
    path = write(tmp_path, text, name)
    message = "\n".join(problems({"VITALS_CONFIG": path}))
    assert "VITALS_CONFIG" in message
    assert path in message
    assert words in message


def test_a_key_that_is_given_twice_is_an_error_and_not_the_end_of_the_first(tmp_path: Path) -> None:
    text = "prometheus:\n  tls_cert: a.pem\n  tls_key: a.key\nqueue_size: 20\n\nprometheus:\n  port: 1\n  'port': 2\n"
    path = write(tmp_path, text)
    assert problems({"VITALS_CONFIG": path}) == [
        f"VITALS_CONFIG='{path}': prometheus is given on line 1 and again on line 6; a key may be given once",
        f"VITALS_CONFIG='{path}': prometheus.port is given on line 7 and again on line 8; a key may be given once",
    ]


@pytest.mark.parametrize(
    ("text", "key"),
    [("slos: [{name: a, target: 0.9, ttft: 1, ttft: 2}]", "slos.0.ttft"), ("buckets: {step: [1], step: [2]}", "buckets.step"),
     ("price: &a {per_gpu_hour: 1}\nperf: {<<: *a, peak_flops: 1.0e+12, peak_flops: 2.0e+12}", "perf.peak_flops")],
)  # fmt: skip
def test_a_key_that_is_given_twice_anywhere(tmp_path: Path, text: str, key: str) -> None:
    (line,) = problems({"VITALS_CONFIG": write(tmp_path, text)})
    assert f": {key} is given on line " in line


def test_what_is_merged_into_a_mapping_gives_way_to_what_it_says(tmp_path: Path) -> None:
    text = "otlp: &o\n  timeout: 1\n  interval: 2\nnative: &n\n  <<: *o\n  interval: 3\n"
    assert load({"VITALS_CONFIG": write(tmp_path, text)}).settings.native.interval == 3.0


def test_an_alias_that_leads_back_to_itself_is_an_error_like_any_other(tmp_path: Path) -> None:
    assert problems({"VITALS_CONFIG": write(tmp_path, "queue_size: &a [*a]\n")})


def test_a_key_that_is_given_twice_in_json() -> None:
    (line,) = problems({"VITALS_PROMETHEUS": '{"tls_cert": "a", "port": 1, "port": 2}'})
    assert line.startswith("VITALS_PROMETHEUS=")
    assert "'port' given more than once; each key may be given once" in line


@pytest.mark.parametrize("end", ['"timeout": 1, "timeout": 2}', '"timeout": '])
def test_the_headers_in_a_section_that_cannot_be_read_are_not_shown(end: str) -> None:
    (line,) = problems({"VITALS_OTLP": '{"headers": {"authorization": "secret"}, ' + end})
    assert line.startswith("VITALS_OTLP: ")
    assert "secret" not in line


def test_a_key_that_is_given_twice_in_toml(tmp_path: Path) -> None:
    path = write(tmp_path, "queue_size = 20\nqueue_size = 30\n", "vitals.toml")
    (line,) = problems({"VITALS_CONFIG": path})
    assert "is not valid TOML" in line


def test_a_file_that_is_not_there_or_no_text(tmp_path: Path) -> None:
    (tmp_path / "dir.yaml").mkdir()
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    for name in ("none.yaml", "dir.yaml", "binary.yaml"):
        (line,) = problems({"VITALS_CONFIG": str(tmp_path / name)})
        assert f"VITALS_CONFIG='{tmp_path / name}': cannot be read" in line


# --- Variables that are no settings


@pytest.mark.parametrize(
    ("variable", "suggestion"),
    [("VITALS_QUEUESIZE", "VITALS_QUEUE_SIZE"), ("VITALS_BUCKET", "VITALS_BUCKETS"),
     ("VITALS_PROMETHEUS_PORT", "VITALS_PROMETHEUS__PORT"), ("VITALS_GEN_AI_ENABLED", "VITALS_GEN_AI__ENABLED")],
)  # fmt: skip
def test_an_unknown_variable_warns_with_a_suggestion(variable: str, suggestion: str) -> None:
    loaded = load({variable: "1"})
    assert loaded.settings == Settings()
    (warning,) = loaded.warnings
    assert warning.startswith(f"{variable} ")
    assert f"did you mean {suggestion}?" in warning


def test_an_unknown_variable_far_from_every_setting_warns_without() -> None:
    (warning,) = load({"VITALS_XYZZY": "1"}).warnings
    assert "VITALS_XYZZY" in warning
    assert "did you mean" not in warning


def test_what_kubernetes_sets_for_a_service_of_our_name_only_warns() -> None:
    environ = {
        "VITALS_PORT": "tcp://10.0.0.7:9464", "VITALS_SERVICE_HOST": "10.0.0.7", "VITALS_SERVICE_PORT": "9464",
        "VITALS_PORT_9464_TCP": "tcp://10.0.0.7:9464", "VITALS_PORT_9464_TCP_PROTO": "tcp",
        "VITALS_PORT_9464_TCP_ADDR": "10.0.0.7", "VITALS_SERVICE_PORT_HTTP_METRICS": "9464",
        "VITALS_PROMETHEUS_SERVICE_HOST": "10.0.0.7", "VITALS_PROMETHEUS_PORT": "tcp://10.0.0.7:9464",
    }  # fmt: skip
    loaded = load(environ)
    assert loaded.settings == Settings()
    assert len(loaded.warnings) == len(environ)


def test_other_variables_are_not_looked_at() -> None:
    environ = {"VLLM_PORT": "x", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "x", "vitals_queue_size": "x", "VITALSX": "1"}
    assert (load(environ).settings, load(environ).warnings) == (Settings(), [])


# --- Strict


@pytest.mark.parametrize("text", ["1", "true", "TRUE", "yes", "on", "y", "t", "0", "false", "no", "off", "n", "f"])
def test_strict_reads_the_same_with_and_without_settings(text: str) -> None:
    assert is_strict({"VITALS_STRICT": text}) == load({"VITALS_STRICT": text}).settings.strict


def test_not_strict_by_default() -> None:
    assert not is_strict({})
    assert not Settings().strict


def test_strict_in_the_file_holds_when_another_setting_is_wrong(tmp_path: Path) -> None:
    path = write(tmp_path, "strict: true\nqueue_size: 1\n")
    assert is_strict({"VITALS_CONFIG": path})


# --- Whatever comes

names = st.sampled_from(
    ["VITALS_PROMETHEUS__PORT", "VITALS_BUCKETS", "VITALS_BUCKETS__STEP", "VITALS_PROMETHEUS", "VITALS_STRICT",
     "VITALS_", "VITALS___", "VITALS_PROMETHEUS__PORT__X", "OTEL_EXPORTER_PROMETHEUS_PORT", "VITALS_GEN_AI__"]
)  # fmt: skip
json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
)


@given(st.dictionaries(names, st.text(max_size=12) | json_values.map(json.dumps), max_size=4))
@examples(150)
def test_whatever_the_environment_says_there_are_settings_or_clear_words(environ: dict[str, str]) -> None:
    assert all(line.strip() for line in outcome(environ))


@pytest.mark.parametrize("path", ["/" + "a" * 200, "relative.sock"])
def test_a_wrong_socket_is_a_clear_error_and_leaves_nothing_on(path: str) -> None:
    with pytest.raises(SettingsError, match="VITALS_WIRE__SIDECAR") as caught:
        load({"VITALS_WIRE__SIDECAR": path})
    assert caught.value.rest is None
    assert "107 bytes" in str(caught.value) or "absolute" in str(caught.value)


def test_a_password_in_a_url_is_not_shown() -> None:
    with pytest.raises(SettingsError) as caught:
        load({"VITALS_NATIVE__URL": "htp://me:secret@host/metrics"})
    assert "secret" not in str(caught.value)
    assert "host/metrics" in str(caught.value)
