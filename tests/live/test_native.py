"""A sidecar that is fed by the metrics page of a vLLM without the plugin."""

import signal
from pathlib import Path

from tests.live.load import put_load
from tests.live.pages import eventually
from tests.live.server import VllmServer
from tests.live.sidecar import SidecarProcess
from tests.parity import differences, parse, value

FINISHED = "vllm_requests_finished_total"


def test_vllms_own_metrics_are_shown_under_our_names(without: VllmServer, tmp_path: Path) -> None:
    put_load(without, count=40, disconnects=False)
    native = SidecarProcess(
        tmp_path / "native.log", "--native-url", f"{without.url}/metrics", env={"VITALS_NATIVE__INTERVAL": "0.5"}
    )
    native.start()
    try:
        theirs = parse(without.metrics_text())
        assert eventually(lambda: not list(differences(theirs, native.page())))
        assert eventually(lambda: value(native.page(), "vllm_engine_up") == 1)  # told just after the rest
        page = native.page()
        assert value(page, FINISHED) > 0
        assert {dict(labels)["source"] for labels in page["vitals_info"]} == {"native"}
        assert "they do not tell:" in native.log.read_text()
        without.stop()
        assert eventually(lambda: value(native.page(), "vllm_engine_up") == 0)
        assert value(native.page(), FINISHED) == value(page, FINISHED)
    finally:
        native.send(signal.SIGTERM)
