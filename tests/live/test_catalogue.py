"""Every metric of the catalogue, with something in it, through a real collector: nothing of it is changed or left out."""

import math
from pathlib import Path
from typing import Any

import pytest

from tests.live.collector import CUMULATIVE, DELTA, UNSPECIFIED, Rotel, Sink
from tests.live.pages import eventually
from tests.unit.exporters.prometheus.test_text import full_collector
from vllm_vitals.catalog import CATALOG
from vllm_vitals.config.settings import Settings
from vllm_vitals.exporters.otlp.exporter import otlp_exporter
from vllm_vitals.store.series import HistogramCell

KINDS = {"counter": "sum", "gauge": "gauge", "histogram": "histogram"}
CASES = [("grpc", "delta", "exponential"), ("http/protobuf", "cumulative", "explicit")]


@pytest.mark.parametrize(("protocol", "temporality", "histograms"), CASES)
def test_all_of_it_arrives(protocol: str, temporality: str, histograms: str, tmp_path: Path) -> None:
    sink = Sink()
    rotel = Rotel(sink, tmp_path)
    otlp: dict[str, Any] = {"endpoint": rotel.endpoint(protocol), "protocol": protocol, "temporality": temporality,
                            "histograms": histograms}  # fmt: skip
    aggregator = full_collector(otlp=otlp, stale_after=0)  # its GPUs were sampled in another time
    exporter = otlp_exporter(aggregator, Settings.model_validate({"otlp": otlp}), "0.32.0", 10.0)
    held = {metric: dict(aggregator.store[metric].cells) for metric in CATALOG}
    try:
        rotel.start()
        assert eventually(lambda: exporter.push(5.0).ok)
        assert eventually(lambda: all(metric.name in sink.described for metric in CATALOG)), [
            metric.name for metric in CATALOG if metric.name not in sink.described
        ]
    finally:
        exporter._close()
        rotel.kill()
        sink.close()
    for metric, cells in held.items():
        if metric.name.startswith("vitals."):
            continue  # those of the exports themselves move with the push
        kind = (
            "exponential_histogram" if (metric.kind, histograms) == ("histogram", "exponential") else KINDS[metric.kind]
        )
        assert sink.described[metric.name] == (kind, metric.unit), metric.name
        summed = DELTA if temporality == "delta" else CUMULATIVE
        assert sink.temporalities[metric.name] == (UNSPECIFIED if kind == "gauge" else summed), metric.name
        named = {
            frozenset((name, value) for name, value in zip(metric.labelnames, key, strict=True) if value): cell
            for key, cell in cells.items()
        }
        assert sink.totals[metric.name].keys() == named.keys(), metric.name
        for labels, cell in named.items():
            expected = cell.total if isinstance(cell, HistogramCell) else cell.value
            assert math.isclose(sink.totals[metric.name][labels], expected, rel_tol=1e-12), (metric.name, labels)
            if isinstance(cell, HistogramCell):
                assert sink.counts[metric.name][labels] == sum(cell.counts), (metric.name, labels)
