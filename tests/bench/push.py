"""What one OTLP export costs the serving process, and for how long it keeps the interpreter from the event loop."""

import gc
import os
import statistics
import time
import tracemalloc
from functools import partial
from typing import NamedTuple

from .isolate import fresh
from .options import Options
from .probe import Gaps, Probe
from .pushers import Ours, Pusher, Sdk, metrics
from .receiver import Receiver
from .table import Figure, ratio

NEVER = 3600.0
HTTP = "http/protobuf"


class Setting(NamedTuple):
    """What is pushed, and how."""

    engines: int
    protocol: str
    histograms: str


SETTINGS = (
    Setting(1, HTTP, "explicit"),
    Setting(8, HTTP, "explicit"),
    Setting(8, "grpc", "explicit"),
    Setting(8, HTTP, "exponential"),
    Setting(64, HTTP, "explicit"),
    Setting(64, "grpc", "exponential"),
)


class Sizes(NamedTuple):
    """What one export sends and allocates: data points, bytes on the wire, most bytes at once."""

    points: int
    sent: int
    peak: int


class Costs(NamedTuple):
    """Milliseconds of one export, and the gaps in another thread's naps with and without one.

    `aggregate` is the processor time to aggregate the latest steps before it.
    """

    wall: float
    cpu: float
    aggregate: float
    busy: Gaps
    idle: Gaps


def pattern(setting: Setting) -> bytes:
    """Return a push of ours, which shows the SDK what series to make."""
    with Receiver(HTTP) as receiver:
        os.environ |= receiver.variables(interval=NEVER, histograms=setting.histograms)
        made = Ours(setting.engines)
        made.push()
        made.push()  # which tells of the first
        return receiver.last()


def pusher(name: str, setting: Setting, push: bytes) -> Pusher:
    """Return an exporter that has pushed once, so that it is connected."""
    made: Pusher = Ours(setting.engines) if name == "ours" else Sdk(push)
    made.change()
    made.push()
    made.change()
    return made


def measure(name: str, setting: Setting, push: bytes, times: int) -> Costs:
    """Time exports, and then, beside as many others, another thread's naps."""
    with Receiver(setting.protocol) as receiver:
        os.environ |= receiver.variables(interval=NEVER, histograms=setting.histograms)
        each = pusher(name, setting, push)
        walls, cpus, aggregates = [], [], []
        for _ in range(times):
            cpu = time.process_time()
            each.aggregate()
            aggregates.append((time.process_time() - cpu) * 1e3)
            cpu, wall = time.process_time(), time.perf_counter()
            each.push()
            walls.append((time.perf_counter() - wall) * 1e3)
            cpus.append((time.process_time() - cpu) * 1e3)
            each.change()
        with Probe() as probe:
            seconds = walls[-1] / 1e3
            for _ in range(times):
                probe.watch("idle", partial(time.sleep, seconds))
                seconds = probe.watch("busy", each.push)
                each.change()
        _check(receiver, 2 * times + 1)
    gaps = probe.gaps("busy", "idle"), probe.gaps("idle", "idle")
    return Costs(*map(statistics.median, (walls, cpus, aggregates)), *gaps)


def _check(receiver: Receiver, pushes: int) -> None:
    """Raise `RuntimeError` unless so many pushes came: the SDK does not tell of one that failed."""
    if receiver.taken().pushes != pushes:
        raise RuntimeError(f"{receiver.taken().pushes} of {pushes} pushes came")


def weigh(name: str, setting: Setting, push: bytes, compression: str) -> Sizes:
    """Count what one export sends, and what another allocates."""
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    with Receiver(setting.protocol) as receiver:
        given = receiver.variables(interval=NEVER, histograms=setting.histograms, compression=compression, relayed=True)
        os.environ |= given
        each = pusher(name, setting, push)
        before = receiver.taken()
        each.push()
        sent = receiver.taken().relayed - before.relayed
        each.change()
        gc.collect()
        tracemalloc.start()
        each.push()
        _, peak = tracemalloc.get_traced_memory()
        _check(receiver, 3)
        request = ExportMetricsServiceRequest.FromString(receiver.last())
    points = sum(len(getattr(metric, metric.WhichOneof("data")).data_points) for metric in metrics(request))
    return Sizes(points, sent, peak)


def run(options: Options) -> Figure:
    """Compare our export with the SDK's of as many series."""
    figure = Figure(
        "push",
        "one OTLP export, gzip, ms, median of rounds",
        [
            *(
                "engines",
                "protocol",
                "histograms",
                "exporter",
                "points",
                "kB",
                "kB gzip",
                "peak kB",
                "wall",
                "cpu",
                "aggregate",
            ),
            *("gap p99", "longest", "in all", "lost", "wall, x ours", "cpu, x ours", "lost, x ours"),
        ],
        "`otel` is the SDK with as many series, filled alike. kB: on the wire. Peak: of Python's allocations (tracemalloc; what\n"
        "protobuf allocates in C is not seen). Gaps: between wake-ups of a thread that naps for 50 us, while one exports; the\n"
        "longest in an export and in all; lost: what they exceed the usual by, per export, less the same when nobody exports,\n"
        "which is the row of `none`. Aggregate: processor time to sort the values of the latest step into buckets. The SDK does\n"
        "so when a value is recorded, on vLLM's event loop; ours is put off to the next export, and is a part of its gaps.",
    )
    for setting in SETTINGS:
        if setting.engines in options.push_engines:
            _compare(figure, options, setting)
    return figure


def _compare(figure: Figure, options: Options, setting: Setting) -> None:
    """Add rows for one setting: rounds of both exporters after the other, each round in another order."""
    names = options.pick("otel", "ours")
    shape = fresh(pattern, setting)
    plain, zipped = ({name: fresh(weigh, name, setting, shape, how) for name in names} for how in ("none", "gzip"))
    costs: dict[str, list[Costs]] = {name: [] for name in names}
    for index in range(options.push_rounds):
        for name in names[:: -1 if index % 2 else 1]:
            costs[name].append(fresh(measure, name, setting, shape, options.scrapes))
    for name in options.pick("none") if names else []:
        idle = [each.idle for each in costs[names[-1]]]
        gaps = [statistics.median(values) for values in zip(*idle, strict=True)]
        figure.add(*setting, name, *[None] * 7, *gaps, *[None] * 3)
    medians = {name: _medians(each) for name, each in costs.items()}
    for name, mine in medians.items():
        sizes = plain[name].points, plain[name].sent / 1e3, zipped[name].sent / 1e3, zipped[name].peak / 1e3
        ours = medians.get("ours", [None] * len(mine))
        ratios = [ratio(mine[column], ours[column]) for column in (0, 1, 6)]
        figure.add(*setting, name, *sizes, *mine, *ratios)


def _medians(costs: list[Costs]) -> list[float]:
    """Return the medians over rounds: wall, processor times, gaps, and what is lost to an export."""
    rows = [(each.wall, each.cpu, each.aggregate, *each.busy[:3], each.busy.lost - each.idle.lost) for each in costs]
    return [statistics.median(values) for values in zip(*rows, strict=True)]
