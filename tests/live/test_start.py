"""How a real vLLM starts and stops with us: whatever is wrong with our settings, it serves."""

import socket
from pathlib import Path

from tests.live.breakable import Starts
from tests.live.load import put_load
from tests.live.pages import eventually
from tests.live.server import VllmServer, fetch
from tests.parity import parse, value
from vllm_vitals.config.settings import OtlpSettings

SLACK = 20.0
"""Seconds that vLLM may take to end by itself, on a crowded machine; it is killed after 60."""


def reachable(server: VllmServer) -> bool:
    try:
        return "vitals_steps_total" in server.vitals_text()
    except OSError:
        return False


def test_a_taken_port_is_named_and_tried_again(starts: Starts) -> None:
    server = starts.taken
    put_load(server, count=13, disconnects=False)
    lines = [line for line in server.log.read_text().splitlines() if "vllm-vitals: No scrape endpoint" in line]
    assert len(lines) == 1
    assert f"localhost:{server.vitals_port}" in lines[0]
    assert "ERROR" in lines[0]
    assert "Address already in use" in lines[0]
    starts.holder.close()
    assert eventually(lambda: reachable(server))
    # What came before the endpoint was counted all the same.
    assert value(parse(server.vitals_text()), "vllm_requests_finished_total") > 13
    with socket.create_connection(("127.0.0.1", server.vitals_port)) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\n")
        assert server.seconds_to_end() < SLACK, "it waited for a client that hangs"
    assert not reachable(server)


def test_a_wrong_setting_keeps_the_exporter_off_and_vllm_on(starts: Starts) -> None:
    put_load(starts.wrong, count=13, disconnects=False)
    log = starts.wrong.log.read_text()
    assert not reachable(starts.wrong)
    assert "vitals_prometheus stays off: VITALS_PROMETHEUS__PORT='99999'" in log
    assert "less than or equal to 65535" in log


def test_a_wrong_setting_stops_a_strict_start(starts: Starts) -> None:
    assert "ended while starting" in str(starts.strict)


def test_another_plugin_list_leaves_us_out(without: VllmServer, model: Path) -> None:
    put_load(without, count=13, disconnects=False)
    assert not reachable(without)
    assert "vllm-vitals" not in without.log.read_text().replace(str(model), "")
    assert "vllm:num_requests_running" in fetch(f"{without.url}/metrics")


def test_a_receiver_that_never_answers_does_not_hold_the_end_up(starts: Starts) -> None:
    """Not while vLLM's own metrics are pushed too, either."""
    server = starts.hanging
    put_load(server, count=13, disconnects=False)
    took = server.seconds_to_end()
    print(f"the end took {took:.1f} s")
    assert took < OtlpSettings().shutdown_timeout + SLACK
    assert "Traceback" not in server.log.read_text().rpartition("vllm-vitals: OTLP push")[2]
