"""The page of limits names tests that there are, and the limits that the code has."""

import inspect
import re
from pathlib import Path

from vllm_vitals._util import directory, documents, files, labels, redact
from vllm_vitals._util import http as download
from vllm_vitals._util import http_connection as line
from vllm_vitals._util import http_response as reply
from vllm_vitals.aggregation import aggregator
from vllm_vitals.catalog import cache, metric
from vllm_vitals.config import load, otel_env
from vllm_vitals.exporters.otlp import exporter, grpc_transport, response
from vllm_vitals.exporters.prometheus import limits
from vllm_vitals.ingest import step_queue as queue
from vllm_vitals.records import step
from vllm_vitals.store import store
from vllm_vitals.transport import peers as room
from vllm_vitals.transport import protocol as frames
from vllm_vitals.transport import server as receiver
from vllm_vitals.transport import server as session
from vllm_vitals.vllm import finished, reader
from vllm_vitals.vllm_page import mapping as totals
from vllm_vitals.vllm_page import parse as page
from vllm_vitals.vllm_page import poller

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "security.md").read_text(encoding="utf-8").partition("\n## Limits\n")[2].partition("\n## ")[0]
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in re.findall(r"^\|.*\|$", TEXT, re.MULTILINE)
    if not line.startswith(("| Input", "| ---"))
]
TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(test_\w+))?`")


def size(count: int) -> str:
    """Return a number of bytes as the page has it."""
    return f"{count >> 20} MiB" if count % (1 << 20) == 0 else f"{count >> 10} KiB"


def seconds(duration: float) -> str:
    """Return a duration as the page has it."""
    if duration >= 300:
        return f"{duration / 60:g} minutes"
    return f"{duration:g} s" if duration >= 0.1 else f"{duration * 1000:g} ms"


BOUNDS = {
    "The file of `VITALS_CONFIG`": [
        size(files.MOST_BYTES), f"{documents.MOST_VALUES:,} keys", f"{documents.DEEPEST} levels",
        f"{documents.LONGEST_SCALAR} characters", f"{documents.MOST_BRACKETS:,} brackets", f"{documents.MOST_DOTS} dots",
    ],
    "The value of a variable": [size(otel_env.MAX_VARIABLE_LENGTH)],
    "Wrong settings": [
        f"{load.MAX_LINES} lines", f"{load.MAX_LINE_LENGTH:,} characters", f"value {otel_env.MAX_VALUE_LENGTH}",
    ],
    "Unknown `VITALS_*` variables": [f"{load.MAX_LINES} warnings"],
    "Connections |": [f"{limits.CLIENTS} in all", f"{limits.ADDRESS_CLIENTS} from one address"],
    "Descriptors or memory": [seconds(limits.PAUSE_SECONDS)],
    "Time for a TLS handshake": [seconds(limits.HANDSHAKE_SECONDS)],
    "Time for the head of a request": [seconds(limits.HEAD_SECONDS)],
    "Head of a request": [size(limits.HEAD_BYTES), f"{limits.HEAD_FIELDS} fields"],
    "`Accept`": [f"{limits.MEDIA_RANGES} entries"],
    "Query": [f"{limits.QUERY_FIELDS} fields"],
    "A body or another request": [size(limits.LINGER_BYTES), seconds(limits.LINGER_SECONDS)],
    "Reads from one client": [f"{limits.QUICK_READS} at once", f"every {seconds(limits.TICK_SECONDS)}"],
    "Requests that wait for a page": [f"{limits.WAITING} in all", f"{limits.ADDRESS_WAITING} from one address"],
    "Pages for clients that": [f"{limits.RENDER_BURST_SECONDS * 1000:g} ms", f"{limits.RENDER_SHARE:.0%} of the time"],
    "Responses that are not read": [size(limits.ANSWER_BYTES), size(limits.SEND_BYTES)],
    "Time for a whole scrape": [seconds(limits.EXCHANGE_SECONDS)],
    "Time | `native.timeout`": [f"{download.MOST_REDIRECTS} redirects"],
    "Head of the answer": [size(download.MOST_HEAD)],
    "The page |": [
        f"{size(download.MOST_BYTES)} unpacked", f"{size(2 * download.MOST_BYTES)} as received", f"{page.MOST_LINES:,} lines",
        f"{page.LONGEST_LINE:,} characters",
    ],
    "Series with invented labels": [size(totals.MOST_HELD)],
    "Time | `otlp.timeout`": [seconds(exporter.NATIVE_WAIT_SECONDS)],
    "Bytes of a push's answer": [size(line.MOST_RECEIVED)],
    "Heads over HTTP": [
        size(reply.MOST_HEAD), f"{size(reply.LONGEST_LINE)} for a line", f"{reply.MOST_INFORMATIONAL - 1} responses",
    ],
    "Body over HTTP": [size(reply.MOST_BODY)],
    "Message over gRPC": [size(grpc_transport.MAX_MESSAGE_BYTES), size(response.MAX_PARSED_BYTES)],
    "Words: reason": [f"{redact.MOST_SEARCHED:,} characters", f"{response.MAX_SHOWN} are logged"],
    "Secrets that it sends back": [f"any {redact.FRAGMENT} characters", f"from {redact.LEAST_SECRET} characters"],
    "Kinds of failures": [f"{exporter.MAX_LOGGED_KINDS} failures", f"{exporter.MAX_LOGGED_KINDS} remarks"],
    "The pause": [seconds(exporter.MAX_PAUSE_SECONDS)],
    "The path of a socket": [f"{directory.LONGEST_PATH} bytes"],
    "Connections to a collector": [str(inspect.signature(receiver.Receiver).parameters["most"].default)],
    "A connection that sends nothing": [f"{seconds(session.HANDSHAKE)} until", f"{seconds(session.IDLE)} between"],
    "A frame that arrives slowly": [seconds(frames.WHOLE)],
    "The size of a frame": [size(frames.MOST_FROM_CLIENT), size(session.MOST_OF_HELLO)],
    "Frames of all connections": [size(room.MAX_ROOM_BYTES)],
    "The names of a model": [f"{step.LONGEST_NAME} characters"],
    "A label value": [f"{labels.LONGEST_LABEL} characters"],
    "Values of one label": [f"{store.MAX_SCOPES} pairs"],
    "Reasons of rejections": [str(queue.MAX_REASONS)],
    "A request's id": [f"{finished.LONGEST_ID} characters", f"{aggregator.EXEMPLAR_LENGTH} in an exemplar"],
    "A number": [f"2^{metric.MAX_COUNT.hex().partition('p+')[2]}", f"{metric.MAX_LATENCY_SECONDS / 86400:g} days", f"10^{len(f'{metric.MAX_JOULES:.0f}') - 1} J"],
    "Positions in a draft": [f"{reader.MOST_POSITIONS} are read", f"{cache.MAX_POSITIONS} have"],
}  # fmt: skip
"""How a row of the page begins: what the bounds in it are by the code."""


def test_there_are_rows() -> None:
    assert len(ROWS) > 40
    assert len({tuple(row[:2]) for row in ROWS}) == len(ROWS)
    assert all(len(row) == 4 for row in ROWS)
    assert all(row[0] and row[1] and row[2] for row in ROWS)


def test_each_row_names_tests_that_there_are() -> None:
    for row in ROWS:
        named = TEST.findall(row[3])
        assert named, row
        assert TEST.sub("", row[3]).strip(", ") == "", row
        for file, function in named:
            text = (ROOT / file).read_text(encoding="utf-8")
            assert not function or f"\ndef {function}(" in text, function


def test_each_row_has_the_limits_of_the_code() -> None:
    for begin, bounds in BOUNDS.items():
        (row,) = [row for row in ROWS if " | ".join(row).startswith(begin)]
        for bound in bounds:
            assert re.search(rf"(?<![\d,.]){re.escape(bound)}", f"{row[1]} {row[2]}"), (begin, bound)


def test_what_is_said_of_an_outage_of_vllms_page_has_the_limits_of_the_code() -> None:
    assert f"at most {poller.MOST_REASONS} of one outage, each of at most {page.LONGEST_REASON} characters" in TEXT
