"""OpenTelemetry names become the Prometheus names that the OpenTelemetry specification makes of them."""

import pytest

from vllm_vitals.catalog.names import prometheus_label, prometheus_name, prometheus_unit

GAUGE, COUNTER, HISTOGRAM = "gauge", "counter", "histogram"

# The examples of the specification and of the translators that implement it.
NAMES = [
    ("(lambda).function.executions(#)", "", GAUGE, "lambda_function_executions"),
    ("system.filesystem.usage", "By", GAUGE, "system_filesystem_usage_bytes"),
    ("system.network.dropped", "{packets}", GAUGE, "system_network_dropped"),
    ("system.network.dropped", "{packets}", COUNTER, "system_network_dropped_total"),
    ("system.network.dropped", "packets", GAUGE, "system_network_dropped_packets"),
    ("system.network.io", "By", COUNTER, "system_network_io_bytes_total"),
    ("system.network.packets", "{packet}/s", GAUGE, "system_network_packets_per_second"),
    ("system.disk.throughput", "By/s", GAUGE, "system_disk_throughput_bytes_per_second"),
    ("system.memory.utilization", "1", GAUGE, "system_memory_utilization_ratio"),
    ("system.memory.utilization", "1", HISTOGRAM, "system_memory_utilization"),
    ("objects", "1", COUNTER, "objects_total"),
    ("storage.filesystem.utilization", "%", GAUGE, "storage_filesystem_utilization_percent"),
    ("broken.metric.success_percent", "%", GAUGE, "broken_metric_success_percent"),
    ("broken.metric.success_ratio", "%", GAUGE, "broken_metric_success_ratio_percent"),
    ("broken.metric.speed", "km/h", GAUGE, "broken_metric_speed_km_per_hour"),
    ("astro.light.speed", "m/s", GAUGE, "astro_light_speed_meters_per_second"),
    ("system.processes.created", "", COUNTER, "system_processes_created_total"),
    ("hw.fan.speed_ratio", "1", GAUGE, "hw_fan_speed_ratio"),
    ("hw.cpu.speed_limit", "Hz", GAUGE, "hw_cpu_speed_limit_hertz"),
    ("hw.energy", "J", COUNTER, "hw_energy_joules_total"),
    ("hw.power", "W", GAUGE, "hw_power_watts"),
    ("hw.temperature", "Cel", GAUGE, "hw_temperature_celsius"),
    ("hw.gpu.io", "By", COUNTER, "hw_gpu_io_bytes_total"),
    ("http.server.request.duration", "s", HISTOGRAM, "http_server_request_duration_seconds"),
    ("test.latency", "ms", HISTOGRAM, "test_latency_milliseconds"),
    ("test.double__under..score", "", GAUGE, "test_double_under_score"),
    ("jobs.time.seconds", "s", HISTOGRAM, "jobs_time_seconds"),
    ("jobs.seconds.total", "s", COUNTER, "jobs_seconds_total"),
    ("jobs.done.total", "", COUNTER, "jobs_done_total"),
    ("jobs.time.total", "s", COUNTER, "jobs_time_seconds_total"),
    ("2xx.responses", "", COUNTER, "_2xx_responses_total"),
]


@pytest.mark.parametrize(("name", "unit", "kind", "expected"), NAMES)
def test_translation(name: str, unit: str, kind: str, expected: str) -> None:
    assert prometheus_name(name, unit, gauge=kind == GAUGE, counter=kind == COUNTER) == expected


@pytest.mark.parametrize(
    ("unit", "gauge", "expected"),
    [
        ("", True, ""), ("1", True, "ratio"), ("1", False, ""), ("{token}", True, ""), ("By", False, "bytes"),
        ("KiBy", True, "kibibytes"), ("MiBy", True, "mebibytes"), ("GiBy", True, "gibibytes"),
        ("TiBy", True, "tibibytes"), ("KBy", True, "kilobytes"), ("MBy", True, "megabytes"),
        ("GBy", True, "gigabytes"), ("TBy", True, "terabytes"), ("d", True, "days"), ("h", True, "hours"),
        ("min", True, "minutes"), ("s", True, "seconds"), ("ms", True, "milliseconds"),
        ("us", True, "microseconds"), ("ns", True, "nanoseconds"), ("m", True, "meters"), ("V", True, "volts"),
        ("A", True, "amperes"), ("g", True, "grams"), ("{request}/s", True, "per_second"),
        ("By/m", True, "bytes_per_minute"), ("By/h", True, "bytes_per_hour"), ("By/d", True, "bytes_per_day"),
        ("By/w", True, "bytes_per_week"), ("By/mo", True, "bytes_per_month"), ("By/y", True, "bytes_per_year"),
    ],
)  # fmt: skip
def test_units(unit: str, *, gauge: bool, expected: str) -> None:
    assert prometheus_unit(unit, gauge=gauge) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [("gen_ai.operation.name", "gen_ai_operation_name"), ("error.type", "error_type"), ("engine", "engine"),
     ("a-b c", "a_b_c"), ("2nd.place", "key_2nd_place")],
)  # fmt: skip
def test_labels(name: str, expected: str) -> None:
    assert prometheus_label(name) == expected
