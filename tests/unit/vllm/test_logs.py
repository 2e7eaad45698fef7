"""What is logged of vLLM's reports is bounded and on one line."""

import pytest

from vllm_vitals.vllm.connectors import Connectors
from vllm_vitals.vllm.fields import Fields


def test_the_name_of_an_unknown_connector(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "vllm.vitals")
    connectors = Connectors("Odd\nConnector" + "x" * 5000, Fields(lambda *_: None))
    connectors.read({"something": 1})
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.isprintable()
    assert len(line) < 400
