"""Exemplars take request ids, which vLLM's stats hold since 0.20: where they are asked for in vain, the log says so."""

import sys
from dataclasses import make_dataclass
from types import ModuleType

import pytest

from tests.unit.fake_vllm import FakeVllm, fake_vllm
from vllm_vitals.vllm.engine_config import has_request_ids

__all__ = ["fake_vllm"]
STATS = "vllm.v1.metrics.stats"


def stats(*fields: str) -> ModuleType:
    module = ModuleType(STATS)
    vars(module)["FinishedRequestStats"] = make_dataclass("FinishedRequestStats", fields)
    return module


@pytest.mark.parametrize(
    ("fields", "exemplars", "said"),
    [
        (["finish_reason"], "true", True),
        (["finish_reason"], "false", False),
        (["finish_reason", "request_id"], "true", False),
    ],
)
def test_exemplars_without_request_ids_are_told_of_once(
    fields: list[str],
    exemplars: str,
    *,
    said: bool,
    vllm: FakeVllm,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setitem(sys.modules, STATS, stats(*fields))
    monkeypatch.setenv("VITALS_EXEMPLARS", exemplars)
    for _ in range(2):
        vllm.start()
    lines = [record.getMessage() for record in caplog.records if "no exemplars" in record.getMessage()]
    assert len(lines) == said
    assert all("vLLM 0.32.0 does not tell the ids of requests, 0.20.0 and newer do" in line for line in lines)


def test_what_is_not_known_is_not_complained_of(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (None, ModuleType(STATS), stats()):
        if module is None:
            monkeypatch.delitem(sys.modules, STATS, raising=False)
        else:
            monkeypatch.setitem(sys.modules, STATS, module)
        assert has_request_ids()
