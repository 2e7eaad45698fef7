"""A push over HTTP imports nothing that only gRPC needs: some images have no grpc, or one that cannot be imported."""

import os
import subprocess
import sys

import pytest

from tests.unit.otlp import VERSION, HttpReceiver, identity

PUSH = """
import sys

BLOCKED = sys.argv[2].split(",")


class Blocker:
    def find_spec(self, name, *_):
        if any(name == each or name.startswith(each + ".") for each in BLOCKED):
            raise ImportError(f"{name} cannot be imported here")


sys.meta_path.insert(0, Blocker())

from vllm_vitals.aggregation.aggregator import Aggregator
from vllm_vitals.config.settings import Settings
from vllm_vitals.exporters.otlp.exporter import otlp_exporter

for protocol in sys.argv[3].split(","):
    settings = Settings(otlp={"endpoint": sys.argv[1], "protocol": protocol})
    exporter = otlp_exporter(Aggregator(settings), settings, "VERSION", 10.0)
    print(protocol, exporter.push(20.0).error)
print(*sorted(each for each in sys.modules if each.startswith(("grpc", "google.rpc", "opentelemetry.sdk.metrics"))))
""".replace("VERSION", VERSION)
GRPC = "grpc,google.rpc"


def push(endpoint: str, *protocols: str, blocked: str) -> list[str]:
    """Push from a new process in which some packages cannot be imported; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", PUSH, endpoint, blocked, ",".join(protocols)],
        env={**os.environ, "NO_PROXY": "*", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.versions
def test_a_push_over_http_needs_no_grpc() -> None:
    with HttpReceiver().serve() as receiver:
        lines = push(receiver.endpoint, "http/protobuf", "grpc", "http/protobuf", blocked=GRPC)
    refused = "EndpointError: grpc cannot be used here (ImportError: grpc cannot be imported here): "
    advice = "set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf, and the endpoint for it"
    assert lines == ["http/protobuf no answer", f"grpc {refused}{advice}", "http/protobuf no answer", ""]
    assert [identity(each.message)["service.version"] for each in receiver.received] == [VERSION] * 2


def test_a_push_over_http_imports_neither_grpc_nor_the_sdks_metrics() -> None:
    with HttpReceiver().serve() as receiver:
        assert push(receiver.endpoint, "http/protobuf", blocked="none") == ["http/protobuf no answer", ""]
    assert len(receiver.received) == 1
