"""A sidecar for vLLM's own metrics: what it shows and pushes says where it comes from."""

import time
import urllib.request

from prometheus_client import CollectorRegistry, Counter, generate_latest

from tests.unit.otlp import HttpReceiver
from tests.unit.peer import Peer, answer
from vllm_vitals.settings import Settings
from vllm_vitals.sidecar import NATIVE, NativeSidecar


def native_page(tokens: int) -> bytes:
    registry = CollectorRegistry()
    labels = ("model_name", "engine")
    Counter("vllm:generation_tokens", "Tokens.", labels, registry=registry).labels("m", "0").inc(tokens)
    return answer(generate_latest(registry), "Content-Type: text/plain; version=0.0.4")


def test_what_is_native_is_marked_wherever_it_goes() -> None:
    with Peer(native_page(7)) as vllm, HttpReceiver().serve() as receiver:
        settings = Settings.model_validate(
            {
                "prometheus": {"port": 0, "host": "127.0.0.1"},
                "otlp": {"endpoint": receiver.endpoint, "interval": 0.5, "resource": {"team": "a"}},
                "native": {"url": vllm.url(), "interval": 0.5},
            }
        )
        sidecar = NativeSidecar(settings, vllm.url())
        sidecar.start()
        try:
            until = time.monotonic() + 20
            while not receiver.received and time.monotonic() < until:
                time.sleep(0.05)
            (port,) = sidecar._exporters["prometheus"].ports  # type: ignore[attr-defined]
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
                shown = page.read().decode()
        finally:
            sidecar.stop()
    (resource,) = {each.message.resource_metrics[0].resource.SerializeToString() for each in receiver.received}
    told = {
        pair.key: pair.value.string_value
        for pair in receiver.received[0].message.resource_metrics[0].resource.attributes
    }
    assert resource
    assert (told["vitals.source"], told["team"]) == (NATIVE, "a")
    assert 'vllm_tokens_generation_total{model_name="m",engine="0"} 7.0' in shown
    assert f'source="{NATIVE}"' in shown
