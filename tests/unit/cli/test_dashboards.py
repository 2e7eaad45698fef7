"""`vllm-vitals dashboards` where it cannot work."""

import sys

from typer.testing import CliRunner

from vllm_vitals.cli import app


def test_without_the_extra_it_says_what_to_install(monkeypatch, tmp_path) -> None:
    monkeypatch.setitem(sys.modules, "grafana_foundation_sdk", None)
    for name in [
        name for name in sys.modules if name.startswith(("vllm_vitals.mixin.dashboards", "grafana_foundation_sdk."))
    ]:
        monkeypatch.delitem(sys.modules, name)
    ran = CliRunner().invoke(app, ["dashboards", "--out", str(tmp_path)])
    assert ran.exit_code == 1
    assert "It needs grafana-foundation-sdk, on Python 3.11 or newer" in ran.output
    assert "pip install 'vllm-vitals[dashboards]'" in ran.output
    assert not list(tmp_path.iterdir())


def test_a_preview_without_its_extra_says_what_to_install(monkeypatch, tmp_path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for name in [name for name in sys.modules if name.startswith(("vllm_vitals.preview", "vllm_vitals.cli.preview"))]:
        monkeypatch.delitem(sys.modules, name)
    ran = CliRunner().invoke(app, ["dashboards", "preview", "--out", str(tmp_path / "x.html")])
    assert ran.exit_code == 1
    assert "It needs grafana-foundation-sdk and matplotlib, on Python 3.11 or newer" in ran.output
    assert "pip install 'vllm-vitals[preview]'" in ran.output
    assert not list(tmp_path.iterdir())


def test_an_unknown_source_is_refused(tmp_path) -> None:
    ran = CliRunner().invoke(app, ["dashboards", "--out", str(tmp_path), "--source", "vllm"])
    assert ran.exit_code == 2
