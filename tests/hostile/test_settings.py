"""Whatever the variables and files of the settings hold, there are settings in the end, or clear words: soon, and few."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.hostile import documents as made
from tests.hostile.documents import SECRET
from tests.unit.builders import examples
from tests.unit.fake_vllm import FakeVllm, fake_vllm, make_config
from vllm_vitals._util import documents, files
from vllm_vitals._util import log as logs
from vllm_vitals._util.files import MOST_BYTES
from vllm_vitals.config import load as configuration
from vllm_vitals.config.load import MAX_LINE_LENGTH, Loaded, SettingsError, is_strict, load
from vllm_vitals.config.settings import Settings
from vllm_vitals.mixin.rules.loading import RulesConfigError, read

__all__ = ["fake_vllm"]
MOST_LINES = 200
"""A little above ten for each section."""
VARIABLES = [*configuration.variables(), "VITALS_OTLP", "VITALS_PROMETHEUS", "VITALS_BUCKETS__STEP", "VITALS_OTLP__HEADERS__A",
             "VITALS_", "VITALS___", "VITALS_PROMETHEUS__PORT__X", "OTEL_EXPORTER_OTLP_HEADERS", "OTEL_RESOURCE_ATTRIBUTES",
             "OTEL_EXPORTER_OTLP_TIMEOUT", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_METRICS_EXPORTER", "OTEL_SDK_DISABLED",
             "OTEL_EXPORTER_OTLP_CERTIFICATE", "OTEL_METRIC_EXPORT_INTERVAL"]  # fmt: skip
COMMAND = [sys.executable, "-c", "from vllm_vitals.cli import app; app()"]


def write(directory: Path, content: bytes | str, name: str = "vitals.yaml") -> str:
    path = directory / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
    return str(path)


def outcome(environ: dict[str, str]) -> Loaded | SettingsError:
    """Return what comes of an environment, after a look at what is said of it."""
    result: Loaded | SettingsError
    errors: list[str] = []
    try:
        result = load(environ)
    except SettingsError as error:
        result = error
        errors = str(error).split("\n")
        counted = sum(map(len, error.problems.values()))
    names = [*environ, *Settings.model_fields, Path(environ.get("VITALS_CONFIG", "-")).name]
    for line in errors:
        assert counted == len(errors)
        assert line.startswith("and ") or any(name[:60] in line for name in names if name.isprintable()), line
    lines = [*errors, *result.warnings]
    assert len(lines) <= MOST_LINES
    for line in lines:
        assert 0 < len(line) <= MAX_LINE_LENGTH
        assert line.isprintable()
        assert SECRET not in line
    assert is_strict(environ) is (result.settings.strict if isinstance(result, Loaded) else result.strict)
    return result


def problem(environ: dict[str, str]) -> str:
    result = outcome(environ)
    assert isinstance(result, SettingsError)
    return str(result)


# --- Files


@examples(300)
@given(made.files, st.sampled_from([{}, {"VITALS_STRICT": "1"}, {"VITALS_STRICT": "perhaps"}]))
@example((".yaml", b'queue_size: !!int ""'), {})
@example((".yaml", b"[" * 600), {})
@example((".yaml", b"? [a]\n: 1"), {})
@example((".yaml", b"a: !!timestamp 2024-99-99"), {})
@example((".toml", b"a = 2024-02-31"), {})
@example((".yaml", b"\xed\xa0\x80: 1"), {})
@example((".yaml", b'"\\uD800": 1\notlp: {headers: {"\\uD800": 1}}'), {})
@example((".yaml", b"buckets: {? !!binary x : 1, 2: 3, ~: 4}"), {})
def test_any_file_ends_in_settings_or_in_clear_words(
    tmp_path_factory: pytest.TempPathFactory, file: tuple[str, bytes], more: dict[str, str]
) -> None:
    suffix, content = file
    path = write(tmp_path_factory.getbasetemp(), content, f"vitals{suffix}")
    result = outcome({"VITALS_CONFIG": path, **more})
    if isinstance(result, SettingsError) and result.rest is None and more.get("VITALS_STRICT") == "1":
        assert result.strict


@examples(300)
@given(made.with_secrets)
@example((".yaml", f"{{otlp: {{endpoint; 'https://user:{SECRET}@host', headers: {{}}}}, queue_size: []}}".encode()))
@example((".yaml", f"native: {{url: 'http://me:a/b@host/metrics=token={SECRET}'}}".encode()))
def test_no_secret_of_a_file_is_shown(tmp_path_factory: pytest.TempPathFactory, file: tuple[str, bytes]) -> None:
    suffix, content = file
    outcome({"VITALS_CONFIG": write(tmp_path_factory.getbasetemp(), content, f"secret{suffix}")})


@pytest.mark.parametrize("loader", sorted({"SafeLoader", documents.LOADER.__name__}))
@examples(100)
@given(made.yaml_texts)
def test_both_parsers_of_yaml_take_any_text(loader: str, text: str) -> None:
    import yaml

    lines = []
    try:
        documents.yaml_(text, getattr(yaml, loader))
    except documents.DocumentError as error:
        lines = error.lines
    except (yaml.YAMLError, ValueError) as error:
        lines = [documents._parsers_words(error)]
    assert all(len(line) <= documents.LONGEST_PROBLEM and SECRET not in line for line in lines)


@examples(100)
@given(made.trees)
def test_yaml_without_aliases_is_read_as_before(tree: dict[str, Any]) -> None:
    import yaml

    text = yaml.safe_dump(tree, allow_unicode=True)
    expected, found = repr(yaml.safe_load(text)), repr(documents.yaml_(text))
    assert found == expected


def test_each_bomb_is_over_soon() -> None:
    # Each took from ten seconds to for ever; all of them together take five.
    done = subprocess.run(
        [sys.executable, "-m", "tests.hostile.bombs"], timeout=240, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_anchors_in_a_small_honest_file_keep_working(tmp_path: Path) -> None:
    text = """
x-limits: &limits {ttft: 1s, target: 0.9}
slos:
  - {<<: *limits, name: chat}
  - {<<: *limits, name: batch, ttft: 1m}
"""
    assert "unknown setting 'x-limits'" in problem({"VITALS_CONFIG": write(tmp_path, text)})
    text = "slos:\n  - &one {name: chat, ttft: 1s, target: 0.9}\n  - {<<: *one, name: batch, ttft: 1m}\n"
    loaded = outcome({"VITALS_CONFIG": write(tmp_path, text)})
    assert isinstance(loaded, Loaded)
    assert [(slo.name, slo.ttft, slo.target) for slo in loaded.settings.slos] == [("chat", 1, 0.9), ("batch", 60, 0.9)]


@pytest.mark.parametrize(("kind", "first"), [("yaml", "queue_size: 20"), ("toml", "queue_size = 20")])
def test_the_size_of_a_file_is_looked_at_before_it_is_read(kind: str, first: str, tmp_path: Path) -> None:
    comment = "#" * (MOST_BYTES - len(first) - 1)
    path = write(tmp_path, f"{first}\n{comment}", f"vitals.{kind}")
    assert isinstance(outcome({"VITALS_CONFIG": path}), Loaded)
    os.truncate(path, 2**40)  # sparse
    assert problem({"VITALS_CONFIG": path}) == (
        f"VITALS_CONFIG='{path}': cannot be read: it has {2**40} bytes, at most {MOST_BYTES} are allowed"
    )


def test_a_file_that_grows_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, "queue_size: 20\n")
    fstat = os.fstat

    def grow(handle: int) -> os.stat_result:
        found = fstat(handle)
        os.truncate(path, 2 * MOST_BYTES)
        return found

    monkeypatch.setattr(files.os, "fstat", grow)
    assert f"it has more than {MOST_BYTES} bytes" in problem({"VITALS_CONFIG": path})


def test_what_is_no_regular_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.yaml")
    (tmp_path / "directory.yaml").mkdir()
    (tmp_path / "zero.yaml").symlink_to("/dev/zero")
    (tmp_path / "loop.yaml").symlink_to(tmp_path / "loop.yaml")
    (tmp_path / "nowhere.yaml").symlink_to(tmp_path / "none")
    for name, words in (
        ("fifo", "not a regular file"), ("directory", "not a regular file"), ("zero", "not a regular file"),
        ("loop", "symbolic links"), ("nowhere", "No such file"), ("nu\x00l", "no file can have such a name"),
        ("x" * 300, "File name too long"), ("\ud800", "no file can have such a name"),
    ):  # fmt: skip
        told = problem({"VITALS_CONFIG": str(tmp_path / f"{name}.yaml")})
        assert "cannot be read" in told
        assert words in told


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> int:
        raise PermissionError(13, "Permission denied", SECRET)

    path = write(tmp_path, "queue_size: 20\n")
    monkeypatch.setattr(files.os, "open", refuse)
    assert problem({"VITALS_CONFIG": path}) == f"VITALS_CONFIG='{path}': cannot be read: Permission denied"


def test_a_byte_order_mark_does_no_harm(tmp_path: Path) -> None:
    for name, text in (("a.yaml", "queue_size: 20"), ("a.toml", "queue_size = 20")):
        loaded = outcome({"VITALS_CONFIG": write(tmp_path, b"\xef\xbb\xbf" + text.encode(), name)})
        assert isinstance(loaded, Loaded)
        assert loaded.settings.queue_size == 20


# --- Variables

texts = st.text(max_size=30) | made.json_texts | st.text(st.characters(categories=["Cs", "Cc"]), max_size=5)


@examples(300)
@given(
    st.dictionaries(st.sampled_from(VARIABLES) | st.text(max_size=8).map("VITALS_{}".format), texts, max_size=6),
    st.sampled_from(["1", "0", "perhaps", "\udcff", ""]),
)
@example({"VITALS_\udcff": "\udcff", "VITALS_OTLP__\udcff": "\udcff", "VITALS_BUCKETS__\udcff": "[1]"}, "1")
@example({"VITALS_BUCKETS": '{"\\ud800": [1]}', "VITALS_OTLP": '{"headers": {"\\ud800": "\\ud800"}}'}, "1")
@example(
    {"VITALS_NATIVE__URL": "http://\udcff", "VITALS_WIRE__SOCKET": "/\udcff", "VITALS_WIRE__SIDECAR": "/\ud800"}, "1"
)
@example({"VITALS_PROMETHEUS__TLS_KEY": "\x00", "VITALS_OTLP__TLS_CA": "x" * 5000}, "1")
def test_any_environment_ends_in_settings_or_in_clear_words(environ: dict[str, str], strict: str) -> None:
    result = outcome({"VITALS_STRICT": strict, **environ})
    if isinstance(result, SettingsError) and "VITALS_STRICT" not in environ:
        assert result.strict is (strict == "1")


SECRETIVE = [
    {"VITALS_OTLP__HEADERS": f'{{"authorization": "Bearer {SECRET}", }}'},
    {"VITALS_OTLP__HEADERS": f'{{"authorization:{SECRET}": 1}}'},
    {"VITALS_OTLP__HEADERS": f'{{"{SECRET}": 1, "b": {{"c": "{SECRET}"}}}}'},
    {"VITALS_OTLP__HEADERS": f'{{"a:{SECRET}": 1, "a:{SECRET}": 2}}'},
    {"VITALS_OTLP": f'{{"headers; a: {SECRET}": 1}}'},
    {"VITALS_NATIVE": f'{{"url; http://user:{SECRET}@host": 1}}'},
    {"VITALS_OTLP__HEADERS": f'["{SECRET}"]'},
    {"VITALS_OTLP__HEADERS": SECRET},
    {"VITALS_OTLP__HEADER": SECRET},
    {"VITALS_OTLP__HEADER__AUTHORIZATION": SECRET},
    {"VITALS_OTLP__HEADERS__AUTHORIZATION": f"{SECRET}\x00"},
    {"VITALS_OTLP__HEADERS__A__B": SECRET},
    {"VITALS_OTLP": f'{{"headers": "{SECRET}"'},
    {"VITALS_OTLP": SECRET},
    {"VITALS_OTLP": f'{{"headerz": {{"a": "{SECRET}"}}}}'},
    {"OTEL_EXPORTER_OTLP_HEADERS": f"authorization: {SECRET}"},
    {"OTEL_EXPORTER_OTLP_HEADERS": f"a={SECRET}\u2028x"},
    {"OTEL_EXPORTER_OTLP_ENDPOINT": f"ftp://user:{SECRET}/x@host"},
    {"OTEL_EXPORTER_OTLP_ENDPOINT": f"htp://user:a/{SECRET}?x#y@host/v1?key={SECRET}#{SECRET}"},
    {"OTEL_EXPORTER_OTLP_ENDPOINT": f"user:{SECRET}@host:4317"},
    {"VITALS_OTLP__ENDPOINT": f"http://user:{SECRET}@["},
    {"VITALS_NATIVE__URL": f"user:{SECRET}@host"},
    {"VITALS_NATIVE__URL": f"http://user:{SECRET}"},
    {"VITALS_NATIVE__URL": f"http://user:a/{SECRET}"},
    {"VITALS_NATIVE__URL": f"user:{SECRET}"},
    {"OTEL_EXPORTER_OTLP_ENDPOINT": f"user:{SECRET}"},
    {"VITALS_NATIVE__TIMEOUT": f"http://user:{SECRET}"},
    {"VITALS_NATIVE": f'{{"url": "http://u:{SECRET}@host", "more": "http://v:{SECRET}@host", }}'},
    {"VITALS_NATIVE": f'[["http://u:{SECRET}@host"]]'},
    {"VITALS_NATIVE__URL": f'{{"http://u:{SECRET}@host": "http://u:{SECRET}@host"}}'},
    {"VITALS_NATIVE__TIMEOUT": f"http://host/?token={SECRET}"},
    {"OTEL_METRICS_EXPORTER": f"https://u:{SECRET}@host"},
    {"OTEL_METRICS_EXPORTER": f"a=https://u:{SECRET}"},
    {"VITALS_NATIVE__TIMEOUT": f'{{"a": "http://host", "url": "http://u:{SECRET}"'},
    {"VITALS_NATIVE__URL": f"http://u:a/b@host:0/metrics/token={SECRET}"},
    {"OTEL_EXPORTER_OTLP_TIMEOUT": f"http://u:{SECRET}@host"},
    {"OTEL_METRIC_EXPORT_INTERVAL": f"http://u:{SECRET}@host"},
    {"VITALS_NATIVE__URL": f"ftp://host/metrics?to=a@b&key={SECRET}"},
    {"VITALS_CONFIG": f"http://u:{SECRET}@host/a.yaml"},
    {"VITALS_CONFIG": f"s3://bucket/a.yaml?key={SECRET}.yaml"},
    {"VITALS_OTLP__TLS_KEY": f"-----BEGIN PRIVATE KEY-----\n{SECRET}"},
    {"VITALS_PROMETHEUS__TLS_KEY": f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}", "VITALS_PROMETHEUS__TLS_CERT": "/a"},
    {"OTEL_EXPORTER_OTLP_CLIENT_KEY": f"-----BEGIN PRIVATE KEY-----\n{SECRET}"},
]


def test_no_secret_of_a_variable_is_shown() -> None:
    for environ in SECRETIVE:
        result = outcome(environ)
        assert isinstance(result, SettingsError) or result.warnings, environ


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yaml", f"otlp: {{headers: {{'a:{SECRET}': 1, 'a:{SECRET}': 2}}}}"),
        ("a.yaml", f"otlp: {{headers: {{a: *{SECRET}}}}}"),
        ("a.yaml", f"otlp: {{headers: {{a: !{SECRET} x}}}}"),
        ("a.yaml", f"otlp: {{headers: {{a: !!int {SECRET}}}}}"),
        ("a.yaml", f"otlp: {{headers: {{a: '{SECRET}}}}}"),
        ("a.yaml", f"otlp:\n  headers;\n  a: {SECRET}: x"),
        ("a.toml", f"[otlp.headers]\n'a:{SECRET}' = 1\n'a:{SECRET}' = 2"),
        ("a.toml", f"[otlp]\nheaders = {{'a:{SECRET}' = 1, 'a:{SECRET}' = 2}}"),
        ("a.toml", f"[otlp]\nheaders = {{'a:{SECRET}' = 1}}\n[otlp.headers.'a:{SECRET}']"),
        ("a.toml", f"[otlp.headers]\na = {SECRET}"),
    ],
)
def test_no_secret_of_a_file_that_cannot_be_read_is_shown(name: str, text: str, tmp_path: Path) -> None:
    assert name in problem({"VITALS_CONFIG": write(tmp_path, text, name)})


def test_a_fault_of_our_own_is_a_clear_error_too(monkeypatch: pytest.MonkeyPatch) -> None:
    for fault in (MemoryError(SECRET), RecursionError(SECRET), type("PanicException", (BaseException,), {})(SECRET)):

        def fail(_: Any, fault: BaseException = fault) -> Settings:
            raise fault

        monkeypatch.setattr(Settings, "model_validate", fail)
        with pytest.raises(SettingsError, match=f"{type(fault).__name__} in test_settings.py") as raised:
            load({"VITALS_STRICT": "1"})
        assert SECRET not in str(raised.value)
        assert raised.value.strict
        assert raised.value.__cause__ is None


# --- What becomes of it

BROKEN = ["queue_size: !!int ''", "[" * 600, "\x00", "slos: &a [*a]"]


@pytest.mark.parametrize("strict", ["", "0", "perhaps", "\udcff", "1"])
def test_serving_goes_on_without_us_unless_that_is_not_wanted(
    strict: str, vllm: FakeVllm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for text in BROKEN:
        caplog.clear()
        monkeypatch.setattr(logs, "_said", set())
        monkeypatch.setenv("VITALS_CONFIG", write(tmp_path, text))
        if strict:
            monkeypatch.setenv("VITALS_STRICT", strict)
        if strict == "1":
            with pytest.raises(SettingsError, match=r"vitals\.yaml"):
                vllm.plugins.PrometheusVitals(make_config(), [0])
        else:
            logger = vllm.plugins.PrometheusVitals(make_config(), [0])
            logger.record(None, None)
        lines = [record.getMessage() for record in caplog.records]
        assert any("stays off" in line and "vitals.yaml" in line for line in lines)
        assert any("VITALS_STRICT" in line for line in lines) is (strict in ("perhaps", "\udcff"))


def test_the_sidecar_ends_with_2_and_a_sentence(tmp_path: Path) -> None:
    for text in BROKEN[:2]:
        path = write(tmp_path, text)
        done = subprocess.run(
            [*COMMAND, "sidecar", "--socket", str(tmp_path / "s.sock")],
            env={**os.environ, "VITALS_CONFIG": path}, timeout=120, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert f"VITALS_CONFIG='{path}': is not valid YAML" in line


def test_doctor_names_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, BROKEN[0])
    done = subprocess.run(
        [*COMMAND, "doctor", "--json"],
        env={**os.environ, "VITALS_CONFIG": path}, timeout=120, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert f"VITALS_CONFIG='{path}': is not valid YAML" in done.stdout
    assert "Traceback" not in done.stderr


# --- Rules


@examples(150)
@given(made.files)
@example((".yaml", b"slo: {burns: [], burns: [x]}"))
@example((".yaml", b"slo: {burns: {}}\nlabels: {service: [[]]}"))
def test_any_configuration_of_rules_is_taken_or_named(
    tmp_path_factory: pytest.TempPathFactory, file: tuple[str, bytes]
) -> None:
    path = Path(write(tmp_path_factory.getbasetemp(), file[1], f"rules{file[0]}"))
    lines = []
    try:
        read(path)
    except RulesConfigError as error:
        lines = str(error).split("\n")
    assert len(lines) <= 21
    assert all(str(path) in line and len(line) < MAX_LINE_LENGTH and line.isprintable() for line in lines)


def test_a_configuration_of_rules_with_many_faults_shows_some(tmp_path: Path) -> None:
    path = Path(write(tmp_path, "".join(f"name{n}: 1\n" for n in range(4000)), "rules.yaml"))
    with pytest.raises(RulesConfigError) as raised:
        read(path)
    lines = str(raised.value).split("\n")
    assert (len(lines), lines[-1]) == (21, f"{path}: and 3980 more faults")
