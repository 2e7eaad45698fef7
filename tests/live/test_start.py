"""How a real vLLM starts and stops with us: whatever is wrong with our settings, it serves."""

import socket
import time
from pathlib import Path

import pytest

from tests.live.load import put_load
from tests.live.pages import eventually
from tests.live.server import ServerError, VllmServer, fetch, free_port
from tests.parity import parse, value


def reachable(server: VllmServer) -> bool:
    try:
        return "vitals_steps_total" in server.vitals_text()
    except OSError:
        return False


def test_a_taken_port_is_named_and_tried_again(model: Path) -> None:
    port = free_port()
    holder = socket.create_server(("127.0.0.1", port))
    environment = {"VITALS_PROMETHEUS__RETRY_INTERVAL": "0.5"}
    with VllmServer(model, vitals_port=port, env=environment) as server:
        put_load(server, count=13, disconnects=False)
        lines = [line for line in server.log.read_text().splitlines() if "vllm-vitals: No scrape endpoint" in line]
        assert len(lines) == 1
        assert f"localhost:{port}" in lines[0]
        assert "ERROR" in lines[0]
        assert "Address already in use" in lines[0]
        holder.close()
        assert eventually(lambda: reachable(server))
        # What came before the endpoint was counted all the same.
        assert value(parse(server.vitals_text()), "vllm_requests_finished_total") > 13
        _stops_soon_with_a_client_that_hangs(server)


def _stops_soon_with_a_client_that_hangs(server: VllmServer) -> None:
    with socket.create_connection(("127.0.0.1", server.vitals_port)) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\n")
        start = time.monotonic()
        server.stop(grace=30)
        assert time.monotonic() - start < 25
        assert not server.alive()
    assert not reachable(server)


def test_a_wrong_setting_keeps_the_exporter_off_and_vllm_on(model: Path) -> None:
    with VllmServer(model, env={"VITALS_PROMETHEUS__PORT": "99999", "VITALS_QUEUESIZE": "5"}) as server:
        put_load(server, count=13, disconnects=False)
        log = server.log.read_text()
        assert not reachable(server)
    assert "vitals_prometheus stays off: VITALS_PROMETHEUS__PORT='99999'" in log
    assert "less than or equal to 65535" in log


def test_a_wrong_setting_stops_a_strict_start(model: Path) -> None:
    environment = {"VITALS_PROMETHEUS__PORT": "99999", "VITALS_STRICT": "true"}
    with pytest.raises(ServerError, match="ended while starting"), VllmServer(model, env=environment):
        pass


def test_another_plugin_list_leaves_us_out(model: Path) -> None:
    with VllmServer(model, env={"VLLM_PLUGINS": "other"}) as server:
        put_load(server, count=13, disconnects=False)
        assert not reachable(server)
        assert "vllm-vitals" not in server.log.read_text().replace(str(model), "")
        assert "vllm:num_requests_running" in fetch(f"{server.url}/metrics")
