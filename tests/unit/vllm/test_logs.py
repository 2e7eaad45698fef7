"""What is logged of vLLM's reports is bounded and on one line."""

import pytest

from vllm_vitals.records.step import Dialect, Unread
from vllm_vitals.vllm import recall
from vllm_vitals.vllm.connectors import Connectors
from vllm_vitals.vllm.fields import Fields
from vllm_vitals.vllm.recall import _Speaker


def test_the_name_of_an_unknown_connector(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "vllm.vitals")
    connectors = Connectors("Odd\nConnector" + "x" * 5000, Fields(lambda *_: None))
    connectors.read({"something": 1})
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.isprintable()
    assert len(line) < 400


def test_the_error_of_a_step_that_cannot_be_read(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("two\nlines" + "x" * 5000)

    monkeypatch.setattr(recall, "recall", fail)
    list(_Speaker(Dialect("m", born=0.0)).read([Unread(0, 1.0, b"")], 0.0))
    (line,) = [record.getMessage() for record in caplog.records]
    assert "ValueError: two lines" in line
    assert len(line) < 500
