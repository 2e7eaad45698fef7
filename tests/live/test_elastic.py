"""vLLM drops its plugins when it scales up, by its own code: serving goes on, and it is said that we are out."""

import math
import time

from tests.live.breakable import STEPS, ElasticServer
from tests.live.pages import eventually
from tests.parity import value
from vllm_vitals.ingest.detach_monitor import CHECK_SECONDS

DETACHED = "vitals_plugin_detached"
NATIVE_TOKENS = "vllm:generation_tokens_total"


def test_it_is_said_once_that_vllm_goes_on_without_us(elastic: ElasticServer) -> None:
    server = elastic
    time.sleep(2.5 * CHECK_SECONDS)
    assert value(server.page(), DETACHED) == 0
    server.scale_up()
    assert eventually(lambda: server.lines("scaled up, with new loggers")), server.lines("Error")
    assert eventually(lambda: value(server.page(), DETACHED) == 1)
    before = server.page()
    assert value(before, "vitals_step_age_seconds") > CHECK_SECONDS / 2
    time.sleep(2.5 * CHECK_SECONDS)
    after = server.page()
    assert value(after, NATIVE_TOKENS) > value(before, NATIVE_TOKENS), "it serves"
    assert value(after, STEPS) == value(before, STEPS)
    assert not math.isnan(value(after, STEPS))
    assert value(after, DETACHED) == 1
    (line,) = server.lines("has not called this plugin")
    assert "vllm-vitals: vLLM generates tokens" in line
    assert "restart vLLM" in line
