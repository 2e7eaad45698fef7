"""The recipe of CONTRIBUTING.md for a new metric: once its diff is applied, the number is shown everywhere."""

from typing import Any

import pytest

from tests.recipe import apply, run

SCRIPT = """
import json
from types import SimpleNamespace

from tests.unit.builders import Sight, collect, facts, page, read
from tests.unit.otlp import HttpReceiver, Pusher
from vllm_vitals.cli.metrics_page import as_markdown as reference
from vllm_vitals.catalog.engine import COLLECTIVE_TRAFFIC
from vllm_vitals.mixin.promql import Queries

perf = SimpleNamespace(num_flops_per_gpu=1, num_collective_bytes_per_gpu=4096)
older = SimpleNamespace(num_flops_per_gpu=1)
records = [facts("0", "mfu"), *(read(SimpleNamespace(num_running_reqs=1, perf_stats=each)) for each in (perf, older, perf))]
with HttpReceiver().serve() as receiver:
    pusher = Pusher(receiver.endpoint, protocol=receiver.protocol)
    for record in records:
        pusher.aggregator.add([record])
    pusher.push()
    pusher.close()
print(json.dumps({
    "scrape": page(collect(*records)),
    "registry": Sight(collect(*records)).of_engine("vllm_perf_collective_traffic_bytes_total"),
    "otlp": [(name, point.as_double) for (name, _), point in receiver.last.items() if name.startswith("vllm.perf.coll")],
    "reference": reference(),
    "query": str(Queries(window="5m").rate(COLLECTIVE_TRAFFIC, ("engine",))),
}))
"""


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    copy = tmp_path_factory.mktemp("recipe")
    apply(copy)
    return run(copy, SCRIPT)


def test_the_metric_is_on_the_scraped_page(shown: dict[str, Any]) -> None:
    assert 'vllm_perf_collective_traffic_bytes_total{model_name="m",engine="0"} 8192' in shown["scrape"]
    assert shown["registry"] == 8192


def test_the_metric_is_pushed(shown: dict[str, Any]) -> None:
    assert shown["otlp"] == [["vllm.perf.collective_traffic", 8192.0]]


def test_the_metric_is_on_the_reference_page(shown: dict[str, Any]) -> None:
    (row,) = [line for line in shown["reference"].splitlines() if line.startswith("| `vllm.perf.collective_traffic`")]
    assert "`vllm_perf_collective_traffic_bytes_total` | counter | `By`" in row
    assert "Needs `--enable-mfu-metrics`. Since vLLM 0.34.0." in row


def test_the_metric_can_be_queried(shown: dict[str, Any]) -> None:
    assert shown["query"] == "sum by (engine) (rate(vllm_perf_collective_traffic_bytes_total[5m]))"
